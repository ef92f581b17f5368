// The rows of a table, of which only those on the screen are elements: search, filters, order, links, copies.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Filters } from "./filters";
import { visible } from "./format";
import { Grid } from "./grid";
import { CopyButton, copyText, keepInView } from "./parts";
import {
  cellText, csvPieces, inError, marked, ordered, readColumn, rowName, rowNamed, selected, tableCells, type Filter, type Order,
  type TableCells,
} from "./rows";
import type { RowTable, TableColumn } from "./types";

/** A clipboard holds a hundred megabytes badly; the button beside it makes a file. */
const MOST_COPIED = 100_000;
/** A search waits until nobody has typed for so long. */
const TYPING_MS = 80;
/** So many rows take seconds to be ordered by name, which the page says before it begins. */
const MANY_ROWS = 200_000;

/** The columns that were read, so that a table that is opened again is there at once. */
const read = new WeakMap<RowTable, Promise<TableCells>>();
const ready = new WeakMap<RowTable, TableCells>();

function columnsOf(table: RowTable): Promise<TableCells> {
  let found = read.get(table);
  if (!found) {
    found = Promise.all(table.columns.map(readColumn)).then((columns) => {
      const cells = tableCells(columns, table.key);
      ready.set(table, cells);
      return cells;
    });
    read.set(table, found);
  }
  return found;
}

/** How many last parts a link may have more than the name of its row: `.forward` or `.output.0`. */
const MOST_MORE = 2;
/** A call has three parts, `Torch.add.0`: with fewer a name means any call of a library. */
const LEAST_PARTS = 3;

/** The names of a link that may stand in a table, the whole one first; none where the link is of another table. */
function namesIn(table: RowTable, wanted: string, isLabelled: boolean): string[] {
  if (isLabelled && table.label && !wanted.startsWith(`${table.label}/`)) return [];
  const whole = isLabelled && table.label ? wanted.slice(table.label.length + 1) : wanted;
  const parts = whole.split(".");
  const most = Math.max(0, Math.min(MOST_MORE, parts.length - LEAST_PARTS));
  return Array.from({ length: most + 1 }, (_, less) => parts.slice(0, parts.length - less).join("."));
}

/** A column of a table that names its rows: the one with the full names, or, where that is hidden, the one with those
 * that are shown. */
function namesOf(table: RowTable, isShown: boolean): TableColumn | undefined {
  const isHidden = (column: TableColumn | undefined) => column !== undefined && "hidden" in column && column.hidden;
  const key = table.columns[table.key];
  if (!isShown) return key;
  return isHidden(key) ? table.columns.find((column) => column.kind === "name" && !isHidden(column)) : undefined;
}

async function rowOf(table: RowTable, name: string | undefined, isShown: boolean): Promise<number> {
  const column = namesOf(table, isShown);
  return !name || !column ? -1 : rowNamed(await readColumn(column), table.rows, name);
}

/** Return the table and the row of a link, null where none has it: the nearest name, and of two tables the first. A
 * link without the label of a table means the first one, and one that is no full name the first row that shows it. */
export async function rowOfLink(tables: RowTable[], wanted: string): Promise<{ table: number; row: number } | null> {
  for (const isShown of [false, true]) {
    for (const isLabelled of [true, false]) {
      const names = tables.map((table) => namesIn(table, wanted, isLabelled));
      for (let less = 0; less <= MOST_MORE; less++) {
        for (const [table, each] of tables.entries()) {
          const row = await rowOf(each, names[table]![less], isShown);
          if (row >= 0) return { table, row };
        }
      }
    }
  }
  return null;
}

function counted(rows: number): string {
  return `${rows.toLocaleString("en-US")} ${rows === 1 ? "row" : "rows"}`;
}

/** What is looked for, in whatever table is shown. */
export interface Search { typed: string; isErrors: boolean }
/** The row that a link opened: where it stands in the table, and its name. Each opening is another object. */
export interface Linked { row: number; name: string }

interface RowsOf { table: RowTable; linked: Linked | null; search: Search; setSearch: (search: Search) => void }

/** The rows of one table. */
export function Rows(shown: RowsOf) {
  const { table } = shown;
  // With the table that they are of: a page that follows a run shows the last one until the next is read.
  const [read, setRead] = useState<{ table: RowTable; cells: TableCells } | null>(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    let isOver = false;
    columnsOf(table).then(
      (cells) => { if (!isOver) setRead({ table, cells }); },
      (error: unknown) => { if (!isOver) setTrouble(String(error)); },
    );
    return () => { isOver = true; };
  }, [table]);
  if (trouble) return <p class="note">The rows of {table.title} cannot be read: {trouble}</p>;
  if (!read) return <p class="waiting" role="status">reading {counted(table.rows)} ...</p>;
  return <Found {...shown} {...read} />;
}

function Found({ table, linked, search, setSearch, cells }: RowsOf & { cells: TableCells }) {
  const { typed, isErrors } = search;
  const [words, setWords] = useState(typed);
  const [filters, setFilters] = useState<ReadonlyMap<number, Filter>>(new Map());
  const [order, setOrder] = useState<Order | null>(null);
  const [isOrdering, setOrdering] = useState(false);
  const [told, setTold] = useState("");
  const [at, setAt] = useState<{ row: number; isLinked: boolean } | null>(null);
  // The row of a link that the search or a filter hid when the link was followed.
  const [lost, setLost] = useState<Linked | null>(null);
  const place = useRef<HTMLDivElement>(null);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const timer = setTimeout(() => setWords(typed), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const errors = useMemo(() => inError(cells.shown, table.rows, table.tones), [cells]);
  const among = isErrors && errors ? errors : undefined;
  const kept = useMemo(
    () => selected(cells.all, table.rows, words, filters, among), [cells, words, filters, among]);
  const rows = useMemo(
    () => (order ? ordered(kept, cells.shown[order.column]!, order.isDown) : kept), [kept, order, cells]);
  useEffect(() => {
    if (!linked) return;
    setAt({ row: linked.row, isLinked: true });
    if (!kept.includes(linked.row)) {
      setLost(linked);
      keepInView(place.current!);
    }
  }, [linked]);

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
    const done = await copyText([...csvPieces(cells.shown, some)].join(""));
    setTold(!done ? "The browser does not let this page copy." : some.length < rows.length
      ? `The first ${counted(some.length)} are copied; all fit into a file.`
      : `Copied: ${counted(some.length)}.`);
  };
  const save = () => {
    const address = URL.createObjectURL(new Blob([...csvPieces(cells.shown, rows)], { type: "text/csv" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${table.title.replace(/[^\w.-]+/g, "_").slice(0, 80) || "rows"}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  };
  const clear = () => {
    setSearch({ typed: "", isErrors: false });
    setWords("");
    setFilters(new Map());
  };
  const isLost = lost !== null && lost === linked && !kept.includes(lost.row);
  const go = (row: number) => {
    setAt({ row, isLinked: false });
    const name = rowName(table.label, cells, row);
    // No link is followed: the row is on the screen.
    if (name) history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  };
  return (
    <div class="rows" ref={place}>
      <div class="row-tools">
        <label>search <input
          ref={box} type="search" value={typed} aria-describedby="search-help"
          onInput={(event) => setSearch({ typed: event.currentTarget.value, isErrors })}
        /></label>
        <span class="unseen" id="search-help">A row is found that has all of the words, each in any column.</span>
        {errors && (
          <button type="button" aria-pressed={isErrors} onClick={() => setSearch({ typed, isErrors: !isErrors })}>
            errors only
          </button>
        )}
        <span class="row-count" role="status">
          {isAll ? "" : `${rows.length.toLocaleString("en-US")} of `}{counted(table.rows)}
          {isOrdering && ", ordering ..."}{words.trim() && ` have "${visible(words.trim(), 60)}"`}
        </span>
        <button
          type="button" disabled={isAll && !order && !typed && !isErrors}
          onClick={() => { clear(); setOrder(null); box.current?.focus(); }}
        >show all</button>
        <button type="button" onClick={copy}>copy as CSV</button>
        <button type="button" onClick={save}>download as CSV</button>
      </div>
      <Filters columns={cells.shown} filters={filters} change={setFilters} tones={table.tones} />
      {told && <p class="note" role="status">{told}</p>}
      {isLost && (
        <p class="note lost" role="status">
          The row <span class="name">{visible(lost.name, 200)}</span> of the link is not among those shown: the search
          or a filter hides it. <button type="button" onClick={clear}>clear search and filters</button>
        </p>
      )}
      <Grid table={table} cells={cells} rows={rows} order={order} reorder={reorder} at={at} go={go} />
      {at && <OneRow table={table} cells={cells} row={at.row} />}
    </div>
  );
}

/** All cells of the current row, whole. */
function OneRow({ table, cells, row }: { table: RowTable; cells: TableCells; row: number }) {
  const name = rowName(table.label, cells, row);
  const address = `${location.href.split("#")[0]}#${encodeURIComponent(name)}`;
  return (
    <div class="one-row" role="group" aria-label="the current row" tabIndex={0}>
      {name && <CopyButton text={address} word="copy link" />}
      <dl>{cells.shown.map((each) => <div><dt>{each.heading}</dt><dd>{visible(cellText(each, row))}</dd></div>)}</dl>
    </div>
  );
}

/** So many rows of a table are printed at most where they are in error, and where none is. */
const MOST_ERRORS = 1000;
const MOST_OTHERS = 100;
/** Smaller tables are read before somebody prints, since a print does not wait. */
const MANY_TO_READ = 20_000;
/** A longer cell may be broken within a word, so that all columns have room on paper. */
const WHOLE_CELL = 16;

/** Which rows of a table are printed, and in words which these are. */
export function printedRows(cells: TableCells, table: RowTable): { rows: Uint32Array; said: string } {
  const marks = inError(cells.shown, table.rows, table.tones);
  const errors = marks ? marked(marks) : new Uint32Array(0);
  const [all, most] = errors.length ? [errors, MOST_ERRORS] : [Uint32Array.from({ length: table.rows }, (_, row) => row), MOST_OTHERS];
  const what = `${all.length.toLocaleString("en-US")} ${errors.length ? (all.length === 1 ? "row in error" : "rows in error")
    : (all.length === 1 ? "row" : "rows")}`;
  const part = all.length > most ? `The first ${most.toLocaleString("en-US")} of ${what}` : `All ${what}`;
  const of = errors.length && errors.length < table.rows ? `, of ${counted(table.rows)}` : "";
  return { rows: all.subarray(0, most), said: `${part}${of}${table.file && `; all stand in ${table.file}`}.` };
}

/** The tables as they are printed. */
export function PrintedTables({ tables }: { tables: RowTable[] }) {
  const [isPrinted, setPrinted] = useState(false);
  useEffect(() => {
    let isOver = false;
    const timer = setTimeout(async () => {
      for (const table of tables) if (!isOver && table.rows <= MANY_TO_READ) await columnsOf(table).catch(() => {});
    }, 500);
    const before = () => setPrinted(true);
    const after = () => setPrinted(false);
    addEventListener("beforeprint", before);
    addEventListener("afterprint", after);
    return () => {
      isOver = true;
      clearTimeout(timer);
      removeEventListener("beforeprint", before);
      removeEventListener("afterprint", after);
    };
  }, [tables]);
  return isPrinted ? <div class="printed">{tables.map((table) => <PrintedTable table={table} />)}</div> : null;
}

function PrintedTable({ table }: { table: RowTable }) {
  const cells = ready.get(table);
  const title = `${table.label && `${table.label}: `}${table.title}`;
  if (!cells) return <p>{title}: its {counted(table.rows)} are printed once they were shown on the screen.</p>;
  const { rows, said } = printedRows(cells, table);
  return (
    <>
      <h3>{title}</h3>
      <p>{said}</p>
      <table>
        <thead><tr>{cells.shown.map((each) => <th scope="col">{each.heading}</th>)}</tr></thead>
        <tbody>
          {Array.from(rows, (row) => <tr>{cells.shown.map((each) => <PrintedCell text={visible(cellText(each, row))} />)}</tr>)}
        </tbody>
      </table>
    </>
  );
}

function PrintedCell({ text }: { text: string }) {
  return <td class={text.length > WHOLE_CELL ? "broken" : ""}>{text}</td>;
}
