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

/** The same facts as a picture, as a table: for screen readers, and to copy. */
export function FactTable({ title, headings, rows, most = 200 }: {
  title: string; headings: string[]; rows: (string | number)[][]; most?: number;
}) {
  const [open, setOpen] = useState(false);
  return (
    <details class="facts" onToggle={(event) => setOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>as a table<span class="unseen">: {title}</span></summary>
      {open && (
        <div class="scroll" tabIndex={0} role="region" aria-label={title}>
          <table>
            <caption class="unseen">{title}</caption>
            <thead><tr>{headings.map((heading) => <th scope="col">{heading}</th>)}</tr></thead>
            <tbody>
              {rows.slice(0, most).map((row) => <tr>{row.map((cell) => <td>{cell}</td>)}</tr>)}
            </tbody>
          </table>
          {rows.length > most && <p>and {rows.length - most} more</p>}
        </div>
      )}
    </details>
  );
}

/** Link to a row of a table of this page. */
export function RowLink({ row, children }: { row: string; children?: ComponentChildren }) {
  return row ? <a href={`#${encodeURIComponent(row)}`}>{children ?? row}</a> : <>{children}</>;
}
