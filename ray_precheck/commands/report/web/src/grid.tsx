// The grid of a table: regular-table draws the rows on the screen; the current row has the keyboard.
import { useEffect, useRef } from "preact/hooks";
import "regular-table";
import type { DataResponse } from "regular-table/dist/esm/types";
import { SIGNS, visible } from "./format";
import { keepInView } from "./parts";
import { cellText, rowName, type Cells, type Order, type TableCells } from "./rows";
import type { RowTable } from "./types";

/** What is longer is shown whole for the current row. */
const LONGEST_CELL = 240;
/** table.css says so, too. */
const ROW_PX = 26;
let made = 0;

interface Shown {
  table: RowTable; cells: TableCells; rows: Uint32Array; order: Order | null; reorder: (order: Order | null) => void;
  at: { row: number; isLinked: boolean } | null; go: (row: number) => void;
}

export function Grid(shown: Shown) {
  const place = useRef<HTMLDivElement>(null);
  const grid = useRef<RowGrid | null>(null);
  useEffect(() => {
    const one = (grid.current = new RowGrid(place.current!, shown));
    return () => one.end();
  }, []);
  useEffect(() => { void grid.current!.show(shown); }, [shown.cells, shown.rows, shown.order, shown.at]);
  // As high as all rows, so that nothing moves when fewer are found.
  const height = (shown.table.rows + 2) * ROW_PX + 8;
  return <div class="grid" ref={place} style={{ height: `min(70vh, 42rem, ${height}px)` }} />;
}

class RowGrid {
  private readonly element = document.createElement("regular-table");
  private readonly id = `grid${made++}`;
  private readonly heads: HTMLButtonElement[];
  private readonly size = new ResizeObserver(() => void this.element.draw());
  /** where in `rows` the current row stands, -1 for nowhere */
  private place = -1;
  private followed: Shown["at"] = null;

  constructor(place: HTMLElement, private shown: Shown) {
    this.heads = shown.cells.shown.map((cells, column) => this.head(cells, column));
    const element = this.element;
    element.setAttribute("role", "grid");
    element.setAttribute("aria-label", shown.table.title);
    element.setAttribute("aria-colcount", String(shown.cells.shown.length));
    place.append(element);
    element.setDataListener(async (x0, y0, x1, y1) => this.cells(x0, y0, x1, y1));
    element.addStyleListener(() => this.styled());
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("click", (event) => this.click(event));
    this.size.observe(place);
  }

  end(): void {
    this.size.disconnect();
    this.element.remove();
  }

  async show(shown: Shown): Promise<void> {
    const isOther = this.shown.rows !== shown.rows;
    this.shown = shown;
    this.place = shown.at ? shown.rows.indexOf(shown.at.row) : -1;
    this.element.setAttribute("aria-rowcount", String(shown.rows.length + 1));
    if (isOther && this.element.scrollTop > 0) this.element.scrollTop = 0;
    await this.element.draw();
    if (shown.at?.isLinked && shown.at !== this.followed && this.place >= 0) {
      this.followed = shown.at;
      this.scrollTo(this.place, true);
      this.element.focus({ preventScroll: true });
      keepInView(this.element.parentElement!);
    }
  }

  private head(cells: Cells, column: number): HTMLButtonElement {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cells.heading;
    button.addEventListener("click", () => {
      const order = this.shown.order;
      // Of numbers the largest are looked for, of names the first.
      const isDown = cells.kind === "number";
      this.shown.reorder(
        order?.column !== column ? { column, isDown } : order.isDown === isDown ? { column, isDown: !isDown } : null);
    });
    return button;
  }

  private cells(x0: number, y0: number, x1: number, y1: number): DataResponse {
    const { cells: { shown: columns, linked }, rows, table } = this.shown;
    const seen = rows.subarray(y0, y1);
    return {
      num_rows: rows.length,
      num_columns: columns.length,
      num_column_headers: 1,
      column_headers: this.heads.slice(x0, x1).map((head) => [head]) as unknown as string[][],
      data: columns.slice(x0, x1).map((cells, place) => Array.from(seen, (row) => {
        const text = cellText(cells, row);
        const short = visible(text, LONGEST_CELL);
        if (x0 + place === linked && text) return this.link(row, short);
        const tone = cells.kind === "tone" ? table.tones[text] : undefined;
        return tone ? badge(tone, short) : short;
      })) as DataResponse["data"], // An element is drawn, too; regular-table's types know no element.
    };
  }

  private link(row: number, short: string): HTMLElement | string {
    const name = rowName(this.shown.table.label, this.shown.cells, row);
    if (!name) return short;
    const link = document.createElement("a");
    link.href = `#${encodeURIComponent(name)}`;
    link.textContent = short;
    link.tabIndex = -1;
    // The row is chosen by `click`; another tab or window is the browser's.
    link.addEventListener("click", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) event.preventDefault();
    });
    return link;
  }

  /** Give what regular-table made its roles, and mark the current row; called after each drawing. */
  private styled(): void {
    const { order, at, cells: { shown: columns } } = this.shown;
    const table = this.element.querySelector("table")!;
    table.setAttribute("role", "none");
    for (const part of table.children) part.setAttribute("role", "rowgroup");
    const headRow = table.tHead!.rows[0];
    headRow?.setAttribute("role", "row");
    headRow?.setAttribute("aria-rowindex", "1");
    for (const cell of headRow?.cells ?? []) {
      const column = this.columnAt(cell);
      cell.setAttribute("role", "columnheader");
      cell.setAttribute("aria-colindex", String(column + 1));
      const isOrdered = order?.column === column;
      cell.setAttribute("aria-sort", !isOrdered ? "none" : order.isDown ? "descending" : "ascending");
    }
    let current = "";
    for (const line of table.tBodies[0]!.rows) {
      const first = line.cells[0];
      const y = first ? this.rowAt(first) : -1;
      const isCurrent = y >= 0 && y === this.place;
      line.setAttribute("role", "row");
      line.setAttribute("aria-rowindex", String(y + 2));
      line.setAttribute("aria-selected", String(isCurrent));
      line.className = isCurrent ? (at?.isLinked ? "current wanted" : "current") : "";
      line.id = `${this.id}-${y}`;
      if (isCurrent) current = line.id;
      for (const cell of line.cells) {
        const column = this.columnAt(cell);
        cell.setAttribute("role", "gridcell");
        cell.setAttribute("aria-colindex", String(column + 1));
        cell.classList.toggle("number", columns[column]?.kind === "number");
      }
    }
    if (current) this.element.setAttribute("aria-activedescendant", current);
    else this.element.removeAttribute("aria-activedescendant");
    this.widen(table);
  }

  /** Give the last column, which is often a sentence, the width that the others leave. */
  private widen(table: HTMLTableElement): void {
    const { length } = this.shown.cells.shown;
    const heads = [...(table.tHead!.rows[0]?.cells ?? [])];
    const last = heads.at(-1);
    const isWhole = last !== undefined && heads.length === length && this.columnAt(last) === length - 1;
    const others = isWhole ? table.offsetWidth - last.offsetWidth : 0;
    const width = isWhole ? `${Math.max(0, this.element.clientWidth - others)}px` : "0px";
    this.element.style.setProperty("--last", width);
    this.element.classList.toggle("whole", isWhole);
  }

  private rowAt(cell: HTMLElement): number {
    const meta = this.element.getMeta(cell);
    return meta?.type === "body" ? meta.y : -1;
  }

  private columnAt(cell: HTMLElement): number {
    const meta = this.element.getMeta(cell);
    return meta && "x" in meta ? meta.x : 0;
  }

  private rowHeight(): number {
    return this.element.querySelector<HTMLElement>("tbody tr")?.offsetHeight || ROW_PX;
  }

  /** How many whole rows are seen. */
  private seen(): number {
    return Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight()) - 2);
  }

  /** Bring a row to the screen; a million rows are more pixels than an element can have, so that the bar
   * stands for their share. */
  private scrollTo(place: number, isMiddle: boolean): void {
    const { element } = this;
    const visible = element.clientHeight / this.rowHeight() - 1;
    const most = Math.max(1, this.shown.rows.length - visible);
    const range = element.scrollHeight - element.clientHeight;
    const top = (element.scrollTop / Math.max(1, range)) * most;
    const wanted = isMiddle ? place - visible / 2 : place < top ? place : place > top + visible - 2 ? place - visible + 2 : top;
    element.scrollTop = (Math.min(most, Math.max(0, wanted)) / most) * range;
  }

  private key(event: KeyboardEvent): void {
    if ((event.target as Element).closest("button")) return;
    const last = this.shown.rows.length - 1;
    const steps: Record<string, number> = {
      ArrowDown: this.place + 1, ArrowUp: this.place - 1, PageDown: this.place + this.seen(),
      PageUp: this.place - this.seen(), Home: 0, End: last,
    };
    const next = steps[event.key];
    if (event.key === "Enter" && this.place >= 0) {
      event.preventDefault();
      this.shown.go(this.shown.rows[this.place]!);
    }
    if (next === undefined || last < 0 || event.altKey) return;
    event.preventDefault();
    this.choose(Math.min(last, Math.max(0, next)));
  }

  private choose(place: number): void {
    this.scrollTo(place, false);
    this.shown.go(this.shown.rows[place]!);
  }

  private click(event: Event): void {
    const cell = (event.target as Element).closest("td");
    const y = cell ? this.rowAt(cell) : -1;
    if (y >= 0 && y < this.shown.rows.length) this.shown.go(this.shown.rows[y]!);
  }
}

function badge(tone: keyof typeof SIGNS, word: string): HTMLElement {
  const element = document.createElement("span");
  element.className = `badge ${tone}`;
  const sign = document.createElement("span");
  sign.setAttribute("aria-hidden", "true");
  sign.textContent = SIGNS[tone];
  element.append(sign, ` ${word}`);
  return element;
}
