// The nouns of schema/view.py as the page gets them (running/view_data.py, commands/report/page.py).

export type Tone = "pass" | "warning" | "error" | "skip" | "unmatched" | "plain";
/** A number that may be NaN or infinite is null; in `values` of HeatMap and BlockMaxima 1e308 and more stand for
 * infinity (charts/scale.ts). */
export type Num = number | null;

/** An array or a list of strings that stands in an element of its own; see blobs.ts. */
export interface Blob_ {
  blob: number;
  dtype: "float64" | "float32" | "int32" | "uint32" | "uint16" | "uint8" | "strings";
  length: number;
}
export interface Fact { name: string; value: string }
export interface Count { name: string; number: number; tone: Tone }
export interface NotCompared { text: string; count: number; names: string[] }
export interface Advice { sentence: string; commands: string[] }
export interface Bar { name: string; value: Num; limit: Num; is_least: boolean }
export interface Histogram {
  kind: "Histogram"; title: string; unit: string; edges: Num[]; counts: number[]; limit: Num; is_log: boolean;
}
export interface BlockMaxima {
  kind: "BlockMaxima"; title: string; unit: string; shape: number[]; values: Num[][]; above: Num;
}
export interface CodeLine { number: number; text: string; is_here: boolean }
export interface Card {
  name: string; tone: Tone; why: string; row: string; label: string; times: Num; unit: string; facts: Fact[]; inputs: Fact[];
  bars: Bar[]; histogram: Histogram | null; blocks: BlockMaxima | null; cause: string; module: string;
  source: string; code: CodeLine[]; reproduce: string; case: string; missing: string[];
}
export interface HeatMap {
  kind: "HeatMap"; title: string; unit: string; rows: string[]; columns: string[]; values: Num[][];
  /** [row, column, the row of a table that the cell opens] */
  links: [number, number, string][]; above: Num; row_title: string; column_title: string;
}
export interface ModuleNode {
  name: string; parent: number; tone: Tone; calls: number; errors: number; link: string;
}
export interface ModuleTree { kind: "ModuleTree"; title: string; nodes: ModuleNode[] }
export interface FlowGraph {
  kind: "FlowGraph"; title: string; unit: string; names: Blob_; tones: Blob_; own: Blob_; inherited: Blob_;
  /** pairs (from, to), one after the other: twice as many numbers as edges */
  edges: Blob_; pairs: Blob_; starts: number[]; texts: Blob_;
  /** the rows that the calls open, "" for none; null where these have the names of the calls */
  links: Blob_ | null;
}
export interface TimelineChart {
  kind: "TimelineChart"; title: string; lanes: string[]; lane: Blob_; begin: Blob_; length: Blob_; names: Blob_;
  name: Blob_; stages: string[]; stage: Blob_; marks: [number, string][];
}
export interface ChartLine { name: string; x: Num[]; y: Num[] }
export interface LineChart {
  kind: "LineChart"; title: string; x_title: string; y_title: string; series: ChartLine[]; limit: Num;
  is_log: boolean;
}
export interface ChartStep { name: string; value: Num; tone: Tone; text: string }
export interface StepChart { kind: "StepChart"; title: string; unit: string; steps: ChartStep[] }
export type Chart = HeatMap | ModuleTree | FlowGraph | TimelineChart | LineChart | StepChart | Histogram;

export interface WordColumn {
  heading: string; kind: "name" | "text" | "tone";
  /** the distinct cells; `codes` are indices into them, null where row i has word i */
  words: Blob_; codes: Blob_ | null;
  /** true: never shown; its cells are the full names of the rows, where the names that are shown are not unique */
  hidden: boolean;
}
export interface NumberColumn {
  heading: string; kind: "number";
  /** distinct numbers in rising order, to three digits; codes from `values.length` on are indices into `words` */
  values: Blob_; words: Blob_; codes: Blob_;
}
export type TableColumn = WordColumn | NumberColumn;
export interface RowTable {
  kind: "RowTable"; title: string; label: string; columns: TableColumn[]; rows: number; key: number;
  tones: Record<string, Tone>; file: string; note: string;
}
export interface View {
  command: string; title: string; sentence: string; tone: Tone; state: "finished" | "running" | "stopped";
  exit_code: number; facts: Fact[]; invocation: string; counts: Count[]; reasons: NotCompared[]; notes: string[];
  cards: Card[]; more_cards: number; overview: Chart[]; model: Chart[]; run: Chart[]; tables: RowTable[];
  advice: Advice[]; files: string[];
}
export interface Report {
  format: number;
  /** the version of ray_precheck, when the page was made, and of which folders or files */
  made: { version: string; when: string; of: string[] };
  views: View[];
  /** how often the page asks whether there is something new, in seconds; null: it never does */
  follow: { every_s: number } | null;
}
export const TONES: Tone[] = ["pass", "warning", "error", "skip", "unmatched", "plain"];
