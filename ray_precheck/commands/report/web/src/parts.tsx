// Small parts that all sections use.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { SIGNS } from "./format";
import type { Tone } from "./types";

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}><span aria-hidden="true">{SIGNS[tone]}</span> {children}</span>;
}

/** A command with a button that copies it. */
export function Command({ line }: { line: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    setCopied(await copyText(line));
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="command">
      <code tabIndex={0}>{line}</code>
      <button type="button" onClick={copy}>{copied ? "copied" : "copy"}</button>
    </div>
  );
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from a mail is no secure context: there only the old way is left.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

type Cell = ComponentChildren;

/** The same facts as a picture, as a table: for screen readers, and to copy. `rows` may be a function that is
 * asked when the table is opened; `total` is how many rows there are, where it does not give all of them. */
export function FactTable({ title, headings, rows, most = 200, total, label = "as a table" }: {
  title: string; headings: string[]; rows: Cell[][] | (() => Cell[][]); most?: number; total?: number;
  label?: string;
}) {
  const [open, setOpen] = useState(false);
  const given = !open ? [] : typeof rows === "function" ? rows() : rows;
  const left = (total ?? given.length) - Math.min(most, given.length);
  return (
    <details class="facts" onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>{label}<span class="unseen">: {title}</span></summary>
      {open && (
        <div class="scroll" tabIndex={0} role="group" aria-label={title}>
          <table>
            <caption class="unseen">{title}</caption>
            <thead><tr>{headings.map((heading) => <th scope="col">{heading}</th>)}</tr></thead>
            <tbody>
              {given.slice(0, most).map((row) => <tr>{row.map((cell) => <td>{cell}</td>)}</tr>)}
            </tbody>
          </table>
          {left > 0 && <p>and {left.toLocaleString("en-US")} more</p>}
        </div>
      )}
    </details>
  );
}

/** Link to a row of a table of this page. */
export function RowLink({ row, children }: { row: string; children?: ComponentChildren }) {
  const open = (event: Event) => {
    event.preventDefault();
    openRow(row);
  };
  return row
    ? <a href={`#${encodeURIComponent(row)}`} onClick={open}>{children ?? row}</a>
    : <>{children}</>;
}

/** Open the row of a link; also where the address names it already, which tells nobody of a change. */
export function openRow(row: string): void {
  if (!row) return;
  location.hash = encodeURIComponent(row);
  document.getElementById("rows")?.scrollIntoView();
}
