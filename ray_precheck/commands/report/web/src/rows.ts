// Which rows of a table are shown, and in which order. A million rows stay numbers and bytes; only those that are
// seen become strings. Comes in: the columns of a table. Goes out: indices of rows. Called by table.tsx.
import { numbers, strings, type Numbers, type Strings } from "./blobs";
import type { TableColumn, Tone } from "./types";

/** A column that was read. Code c below `values.length` is a number, else word `c - values.length`. */
export interface Cells {
  heading: string;
  kind: "name" | "text" | "tone" | "number";
  words: Strings;
  values: Numbers;
  /** null: row i has word i */
  codes: Numbers | null;
  isHidden: boolean;
}

/** The columns of a table that were read: `all` of them, those that are `shown` first. `names` are the full names of
 * the rows, undefined where the table has none; a cell of shown column `linked` is the link to its row. */
export interface TableCells { all: Cells[]; shown: Cells[]; names: Cells | undefined; linked: number }

export interface Filter {
  /** the whole cell */
  equals?: string;
  /** a part of the cell, in ASCII upper or lower case */
  contains?: string;
  from?: number;
  to?: number;
}

export interface Order { column: number; isDown: boolean }

const NO_NUMBERS = new Float64Array(0);

export async function readColumn(column: TableColumn): Promise<Cells> {
  const [words, codes, values] = await Promise.all([
    strings(column.words),
    column.codes && numbers(column.codes),
    column.kind === "number" ? numbers(column.values) : NO_NUMBERS,
  ]);
  return { heading: column.heading, kind: column.kind, words, values, codes, isHidden: "hidden" in column && column.hidden };
}

/** What each column is for; `key` is the index of the column with the full names. */
export function tableCells(columns: Cells[], key: number): TableCells {
  const names = columns[key];
  const shown = columns.filter((cells) => !cells.isHidden);
  const linked = names && !names.isHidden ? shown.indexOf(names) : shown.findIndex((cells) => cells.kind === "name");
  return { all: [...shown, ...columns.filter((cells) => cells.isHidden)], shown, names, linked: Math.max(0, linked) };
}

/** The full name of a row with the label of its table, as links have it; "" where it has none. */
export function rowName(label: string, { names }: TableCells, row: number): string {
  const name = names ? cellText(names, row) : "";
  return name && label ? `${label}/${name}` : name;
}

export function codeOf(cells: Cells, row: number): number {
  return cells.codes ? cells.codes[row]! : row;
}

/** The text of a number of the table, which has three digits, or three of its distance to 1. */
function numberText(value: number): string {
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Number.isInteger(value)) return String(value);
  const short = Number(value.toPrecision(15));
  return Math.abs(value) < 1e-3 ? short.toExponential() : String(short);
}

function codeText(cells: Cells, code: number): string {
  return code < cells.values.length ? numberText(cells.values[code]!) : cells.words.at(code - cells.values.length);
}

export function cellText(cells: Cells, row: number): string {
  return codeText(cells, codeOf(cells, row));
}

const LOWER = Uint8Array.from({ length: 256 }, (_, byte) => (byte >= 65 && byte <= 90 ? byte + 32 : byte));

const UPPER = Uint8Array.from({ length: 256 }, (_, byte) => (byte >= 97 && byte <= 122 ? byte - 32 : byte));

/** Mark with 1 the words that contain a text, ASCII letters in either case (Horspool's search over all bytes). */
export function wordsWith(words: Strings, text: string): Uint8Array {
  const found = new Uint8Array(words.length);
  const needle = new TextEncoder().encode(text).map((byte) => LOWER[byte]!);
  const size = needle.length;
  if (size === 0) return found.fill(1);
  // A zero stands between two words, so that no needle may have one.
  if (needle.includes(0)) return found;
  const { bytes, ends } = words;
  // How far the text may be moved for the byte at its end; 0 where that byte fits, and then `again`.
  const skip = new Uint32Array(256).fill(size);
  needle.forEach((byte, i) => { skip[byte] = skip[UPPER[byte]!] = size - 1 - i; });
  const again = size - 1 - needle.lastIndexOf(needle[size - 1]!, -2);
  let word = 0;
  for (let at = size - 1; at < bytes.length;) {
    const step = skip[bytes[at]!]!;
    if (step > 0) {
      at += step;
      continue;
    }
    let left = size - 2;
    while (left >= 0 && LOWER[bytes[at - size + 1 + left]!] === needle[left]) left--;
    if (left >= 0) {
      at += again;
      continue;
    }
    while (ends[word]! <= at) word++;
    found[word] = 1;
    at = ends[word]! + size;
  }
  return found;
}

/** Mark with 1 the codes of a column whose cells pass a filter. */
export function passing(cells: Cells, filter: Filter): Uint8Array {
  const first = cells.values.length;
  const passed = new Uint8Array(first + cells.words.length);
  const isRange = filter.from !== undefined || filter.to !== undefined;
  if (isRange) {
    const from = filter.from ?? -Infinity;
    const to = filter.to ?? Infinity;
    for (let code = 0; code < first; code++) passed[code] = +(cells.values[code]! >= from && cells.values[code]! <= to);
    return passed;
  }
  const text = filter.equals ?? filter.contains ?? "";
  passed.set(wordsWith(cells.words, text), first);
  for (let code = 0; code < first; code++) passed[code] = +numberText(cells.values[code]!).includes(text.toLowerCase());
  if (filter.equals !== undefined) {
    for (let code = 0; code < passed.length; code++) {
      if (passed[code] && codeText(cells, code) !== text) passed[code] = 0;
    }
  }
  return passed;
}

/** The rows, in their order in the file, that pass all filters and have each word of the search in some column.
 * `among` marks rows with 1; others are left out. */
export function selected(
  columns: Cells[], rows: number, search: string, filters: ReadonlyMap<number, Filter>, among?: Uint8Array,
): Uint32Array {
  const kept = among ? among.slice() : new Uint8Array(rows).fill(1);
  for (const word of search.split(/\s+/).filter((each) => each)) {
    const found = new Uint8Array(rows);
    for (const cells of columns) mark(found, cells, passing(cells, { contains: word }));
    for (let row = 0; row < rows; row++) kept[row]! &= found[row]!;
  }
  for (const [column, filter] of filters) unmark(kept, columns[column]!, passing(columns[column]!, filter));
  return marked(kept);
}

/** The rows that are marked with 1. */
export function marked(kept: Uint8Array): Uint32Array {
  let count = 0;
  for (let row = 0; row < kept.length; row++) count += kept[row]!;
  const found = new Uint32Array(count);
  for (let row = 0, at = 0; row < kept.length; row++) if (kept[row]) found[at++] = row;
  return found;
}

/** Mark with 1 the rows with a verdict that is an error; null where no column has verdicts. */
export function inError(columns: Cells[], rows: number, tones: Record<string, Tone>): Uint8Array | null {
  const verdicts = columns.filter((cells) => cells.kind === "tone");
  if (verdicts.length === 0) return null;
  const kept = new Uint8Array(rows);
  for (const cells of verdicts) mark(kept, cells, Uint8Array.from(cells.words.all(), (word) => +(tones[word] === "error")));
  return kept;
}

function mark(kept: Uint8Array, cells: Cells, passed: Uint8Array): void {
  if (!passed.includes(1)) return;
  const codes = cells.codes;
  for (let row = 0; row < kept.length; row++) kept[row]! |= passed[codes ? codes[row]! : row]!;
}

function unmark(kept: Uint8Array, cells: Cells, passed: Uint8Array): void {
  const codes = cells.codes;
  for (let row = 0; row < kept.length; row++) kept[row]! &= passed[codes ? codes[row]! : row]!;
}

/** Compare the words i and j as people order names: digits by the number that they write. */
export function compareWords(words: Strings, i: number, j: number): number {
  const { bytes, ends } = words;
  let a = words.begin(i);
  let b = words.begin(j);
  const aEnd = ends[i]!;
  const bEnd = ends[j]!;
  while (a < aEnd && b < bEnd) {
    if (isDigit(bytes[a]!) && isDigit(bytes[b]!)) {
      const aLast = digitsEnd(bytes, a, aEnd);
      const bLast = digitsEnd(bytes, b, bEnd);
      while (a < aLast - 1 && bytes[a] === 48) a++;
      while (b < bLast - 1 && bytes[b] === 48) b++;
      if (aLast - a !== bLast - b) return aLast - a - (bLast - b);
      for (; a < aLast; a++, b++) if (bytes[a] !== bytes[b]) return bytes[a]! - bytes[b]!;
    } else {
      const difference = LOWER[bytes[a]!]! - LOWER[bytes[b]!]!;
      if (difference) return difference;
      a++;
      b++;
    }
  }
  return aEnd - a - (bEnd - b);
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57;
}

function digitsEnd(bytes: Uint8Array, at: number, end: number): number {
  while (at < end && isDigit(bytes[at]!)) at++;
  return at;
}

const ranks = new WeakMap<Cells, Uint32Array>();

/** The place of each code of a column in rising order: numbers, then words; equal words have one place. */
export function rankOf(cells: Cells): Uint32Array {
  let rank = ranks.get(cells);
  if (rank) return rank;
  const first = cells.values.length;
  const order = Uint32Array.from({ length: cells.words.length }, (_, word) => word);
  order.sort((i, j) => compareWords(cells.words, i, j));
  rank = new Uint32Array(first + order.length);
  for (let code = 0; code < first; code++) rank[code] = code;
  let place = first - 1;
  for (let at = 0; at < order.length; at++) {
    if (at === 0 || compareWords(cells.words, order[at - 1]!, order[at]!) !== 0) place++;
    rank[first + order[at]!] = place;
  }
  ranks.set(cells, rank);
  return rank;
}

/** `rankOf` for falling order: of numbers NaN is the worst and stands first, other words stay behind all numbers. */
function rankDown(cells: Cells): Uint32Array {
  const rank = rankOf(cells);
  const first = cells.values.length;
  const last = rank.length - 1;
  if (cells.kind !== "number") return rank.map((place) => last - place);
  const isNan = (code: number) => code >= first && codeText(cells, code) === "nan";
  return rank.map((place, code) => (isNan(code) ? 0 : code < first ? first - place : place + 1));
}

/** The same rows ordered by a column; rows with equal cells stay in the order in which they came. */
export function ordered(rows: Uint32Array, cells: Cells, isDown: boolean): Uint32Array {
  const rank = isDown ? rankDown(cells) : rankOf(cells);
  const begins = new Uint32Array(rank.length + 2);
  const placeOf = (row: number) => rank[codeOf(cells, row)]!;
  for (const row of rows) begins[placeOf(row) + 1]!++;
  for (let place = 0; place <= rank.length; place++) begins[place + 1]! += begins[place]!;
  const found = new Uint32Array(rows.length);
  for (const row of rows) found[begins[placeOf(row)]!++] = row;
  return found;
}

/** The row that a link names: the first whose cell is `name`, else the first that begins `name.`; -1 for none. */
export function rowNamed(cells: Cells, rows: number, name: string): number {
  if (!name) return -1;
  const first = cells.values.length;
  const ranks = new Uint8Array(first + cells.words.length);
  let best = 0;
  const candidates = passing(cells, { contains: name });
  for (let code = candidates.indexOf(1); code >= 0; code = candidates.indexOf(1, code + 1)) {
    const text = codeText(cells, code);
    ranks[code] = text === name ? 2 : text.startsWith(`${name}.`) ? 1 : 0;
    best = Math.max(best, ranks[code]!);
  }
  if (best === 0) return -1;
  for (let row = 0; row < rows; row++) if (ranks[codeOf(cells, row)] === best) return row;
  return -1;
}

/** A line of CSV, with its end. */
export function csvLine(texts: string[]): string {
  return `${texts.map((text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",")}\r\n`;
}

/** A name as a cell that no spreadsheet runs; numbers may begin with a minus. */
function csvText(cells: Cells, row: number): string {
  const text = cellText(cells, row);
  return cells.kind === "name" && /^[=+\-@\t']/.test(text) ? `'${text}` : text;
}

/** The rows as CSV with a head, in pieces. */
export function* csvPieces(columns: Cells[], rows: Uint32Array): Generator<string> {
  yield csvLine(columns.map((cells) => cells.heading));
  for (let begin = 0; begin < rows.length; begin += 10_000) {
    let piece = "";
    for (const row of rows.subarray(begin, begin + 10_000)) piece += csvLine(columns.map((cells) => csvText(cells, row)));
    yield piece;
  }
}
