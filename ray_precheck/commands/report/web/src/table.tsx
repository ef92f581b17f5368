// The rows of a table, of which only those on the screen are elements: search, filters, order, links, copies.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Filters } from "./filters";
import { visible } from "./format";
import { Grid } from "./grid";
import { copyText } from "./parts";
import { cellText, csvPieces, ordered, readColumn, rowNamed, selected, type Cells, type Filter, type Order } from "./rows";
import type { RowTable } from "./types";

/** A clipboard holds a hundred megabytes badly; the button beside it makes a file. */
const MOST_COPIED = 100_000;
/** A search waits until nobody has typed for so long. */
const TYPING_MS = 80;
/** So many rows take seconds to be ordered by name, which the page says before it begins. */
const MANY_ROWS = 200_000;

/** The columns that were read, so that a table that is opened again is there at once. */
const read = new WeakMap<RowTable, Promise<Cells[]>>();

function columnsOf(table: RowTable): Promise<Cells[]> {
  let found = read.get(table);
  if (!found) read.set(table, (found = Promise.all(table.columns.map(readColumn))));
  return found;
}

/** How many last parts a link may have more than the name of its row: `.forward` or `.output.0`. */
const MOST_MORE = 2;

/** The names of a link that may stand in a table, the whole one first; none where the link is of another table. */
function namesIn(table: RowTable, wanted: string, isLabelled: boolean): string[] {
  if (isLabelled && table.label && !wanted.startsWith(`${table.label}/`)) return [];
  const whole = isLabelled && table.label ? wanted.slice(table.label.length + 1) : wanted;
  const parts = whole.split(".");
  return Array.from({ length: Math.min(MOST_MORE + 1, parts.length) }, (_, less) => parts.slice(0, parts.length - less).join("."));
}

async function rowOf(table: RowTable, name: string | undefined): Promise<number> {
  const column = table.columns[table.key];
  return !name || !column ? -1 : rowNamed(await readColumn(column), table.rows, name);
}

/** Return the table and the row of a link, null where none has it: the nearest name, and of two tables the first. A
 * link without the label of a table means the first one. */
async function found(tables: RowTable[], wanted: string): Promise<{ table: number; row: number } | null> {
  for (const isLabelled of [true, false]) {
    const names = tables.map((table) => namesIn(table, wanted, isLabelled));
    for (let less = 0; less <= MOST_MORE; less++) {
      for (const [table, each] of tables.entries()) {
        const row = await rowOf(each, names[table]![less]);
        if (row >= 0) return { table, row };
      }
    }
  }
  return null;
}

/** Return the index of the table that has the row of a link, -1 where none has. */
export async function tableWith(tables: RowTable[], wanted: string): Promise<number> {
  return wanted ? ((await found(tables, wanted))?.table ?? -1) : -1;
}

function counted(rows: number): string {
  return `${rows.toLocaleString("en-US")} ${rows === 1 ? "row" : "rows"}`;
}

/** The rows of one table; `wanted` is the row of a link, "" for none. */
export function Rows({ table, wanted }: { table: RowTable; wanted: string }) {
  const [columns, setColumns] = useState<Cells[] | null>(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    let isOver = false;
    columnsOf(table).then(
      (found) => { if (!isOver) setColumns(found); },
      (error: unknown) => { if (!isOver) setTrouble(String(error)); },
    );
    return () => { isOver = true; };
  }, [table]);
  if (trouble) return <p class="note">The rows of {table.title} cannot be read: {trouble}</p>;
  if (!columns) return <p class="waiting" role="status">reading {counted(table.rows)} ...</p>;
  return <Found table={table} columns={columns} wanted={wanted} />;
}

function Found({ table, columns, wanted }: { table: RowTable; columns: Cells[]; wanted: string }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [filters, setFilters] = useState<ReadonlyMap<number, Filter>>(new Map());
  const [order, setOrder] = useState<Order | null>(null);
  const [isOrdering, setOrdering] = useState(false);
  const [told, setTold] = useState("");
  const [at, setAt] = useState<{ row: number; isLinked: boolean } | null>(null);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const kept = useMemo(() => selected(columns, table.rows, search, filters), [columns, search, filters]);
  const rows = useMemo(
    () => (order ? ordered(kept, columns[order.column]!, order.isDown) : kept), [kept, order, columns]);
  // A link shows its row even where a filter hides it.
  useEffect(() => {
    if (!wanted) return;
    let isOver = false;
    void (async () => {
      const row = (await found([table], wanted))?.row ?? -1;
      if (isOver) return;
      if (row < 0) {
        setTold(`No row of ${table.title} is named ${visible(wanted, 200)}.`);
        return;
      }
      setTold("");
      setTyped("");
      setSearch("");
      setFilters(new Map());
      setAt({ row, isLinked: true });
    })();
    return () => { isOver = true; };
  }, [wanted, table]);

  const reorder = (next: Order | null) => {
    if (table.rows < MANY_ROWS) {
      setOrder(next);
      return;
    }
    setOrdering(true);
    setTimeout(() => {
      setOrder(next);
      setOrdering(false);
    }, 30);
  };
  const isAll = rows.length === table.rows;
  const copy = async () => {
    const some = rows.subarray(0, MOST_COPIED);
    const done = await copyText([...csvPieces(columns, some)].join(""));
    setTold(!done ? "The browser does not let this page copy." : some.length < rows.length
      ? `The first ${counted(some.length)} are copied; all fit into a file.`
      : `Copied: ${counted(some.length)}.`);
  };
  const save = () => {
    const address = URL.createObjectURL(new Blob([...csvPieces(columns, rows)], { type: "text/csv" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${table.title.replace(/[^\w.-]+/g, "_").slice(0, 80) || "rows"}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  };
  const clear = () => {
    setTyped("");
    setSearch("");
    setFilters(new Map());
    setOrder(null);
    box.current?.focus();
  };
  return (
    <div class="rows">
      <div class="row-tools">
        <label>search <input ref={box} type="search" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></label>
        <span class="row-count" role="status">
          {isAll ? "" : `${rows.length.toLocaleString("en-US")} of `}{counted(table.rows)}
          {isOrdering && ", ordering ..."}{search && ` have "${visible(search, 60)}"`}
        </span>
        <button type="button" onClick={clear} disabled={isAll && !order && !typed}>show all</button>
        <button type="button" onClick={copy}>copy as CSV</button>
        <button type="button" onClick={save}>download as CSV</button>
      </div>
      <Filters columns={columns} filters={filters} change={setFilters} tones={table.tones} />
      {told && <p class="note" role="status">{told}</p>}
      <Grid
        table={table} columns={columns} rows={rows} order={order} reorder={reorder}
        at={at} go={(row) => setAt({ row, isLinked: false })}
      />
      {at && <OneRow columns={columns} row={at.row} />}
      <p class="printed">A print shows the rows on the screen{table.file && `; all stand in ${table.file}`}.</p>
    </div>
  );
}

/** All cells of the current row, whole. */
function OneRow({ columns, row }: { columns: Cells[]; row: number }) {
  return (
    <dl class="one-row" aria-label="the current row">
      {columns.map((cells) => <div><dt>{cells.heading}</dt><dd>{visible(cellText(cells, row))}</dd></div>)}
    </dl>
  );
}
