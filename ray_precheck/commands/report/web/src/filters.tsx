// A filter for each column of a table: a choice of its words where they are few, a range of numbers, or a text.
import type { Cells, Filter } from "./rows";
import { SIGNS, visible } from "./format";
import type { Tone } from "./types";

/** More verdicts, and more of any other words, are no choice. */
const MOST_VERDICTS = 24;
const MOST_CHOICES = 8;

export function Filters({ columns, filters, change, tones }: {
  columns: Cells[]; filters: ReadonlyMap<number, Filter>; change: (filters: ReadonlyMap<number, Filter>) => void;
  tones: Record<string, Tone>;
}) {
  const set = (column: number, filter: Filter) => {
    const next = new Map(filters);
    if (Object.keys(filter).length === 0) next.delete(column);
    else next.set(column, filter);
    change(next);
  };
  return (
    <details class="filters">
      <summary>filter by columns{filters.size > 0 && ` (${filters.size})`}</summary>
      <div class="filter-fields">
        {columns.map((cells, column) => {
          const filter = filters.get(column) ?? {};
          const one = { cells, filter, set: (next: Filter) => set(column, next) };
          if (cells.kind === "number" && cells.values.length > 0) return <RangeFilter {...one} />;
          const most = cells.kind === "tone" ? MOST_VERDICTS : MOST_CHOICES;
          if (cells.codes && cells.words.length <= most) return <ChoiceFilter {...one} tones={tones} />;
          return <TextFilter {...one} />;
        })}
      </div>
    </details>
  );
}

interface One { cells: Cells; filter: Filter; set: (filter: Filter) => void }

function ChoiceFilter({ cells, filter, set, tones }: One & { tones: Record<string, Tone> }) {
  return (
    <label>{cells.heading}
      <select
        value={filter.equals === undefined ? "" : `=${filter.equals}`}
        onChange={(event) => {
          const chosen = event.currentTarget.value;
          set(chosen ? { equals: chosen.slice(1) } : {});
        }}
      >
        <option value="">all</option>
        {cells.words.all().map((word) => (
          <option value={`=${word}`}>
            {cells.kind === "tone" && tones[word] ? `${SIGNS[tones[word]!]} ` : ""}{visible(word, 80) || "(empty)"}
          </option>
        ))}
      </select>
    </label>
  );
}

function RangeFilter({ cells, filter, set }: One) {
  const change = (end: "from" | "to", text: string) => {
    const next: Filter = { ...filter };
    const value = Number(text);
    if (text.trim() === "" || Number.isNaN(value)) delete next[end];
    else next[end] = value;
    set(next);
  };
  return (
    <fieldset>
      <legend>{cells.heading}</legend>
      {(["from", "to"] as const).map((end) => (
        <label>{end} <input
          type="text" inputMode="decimal" size={9} value={filter[end] ?? ""}
          onChange={(event) => change(end, event.currentTarget.value)}
        /></label>
      ))}
    </fieldset>
  );
}

function TextFilter({ cells, filter, set }: One) {
  return (
    <label>{cells.heading}
      <input
        type="text" placeholder="contains" value={filter.contains ?? ""}
        onInput={(event) => {
          const text = event.currentTarget.value;
          set(text ? { contains: text } : {});
        }}
      />
    </label>
  );
}
