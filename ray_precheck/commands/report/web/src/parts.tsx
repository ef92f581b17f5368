// Small parts that all sections use.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { SIGNS } from "./format";
import type { Tone } from "./types";

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}><span aria-hidden="true">{SIGNS[tone]}</span> {children}</span>;
}

/** A button that copies a text, and says so. */
export function CopyButton({ text, word }: { text: string; word: string }) {
  const [told, setTold] = useState("");
  const copy = async () => {
    setTold(await copyText(text) ? "copied" : "the browser does not let this page copy");
    setTimeout(() => setTold(""), 1500);
  };
  return <button type="button" onClick={copy}>{told || word}</button>;
}

/** A command with a button that copies it. */
export function Command({ line }: { line: string }) {
  return (
    <div class="command">
      <code tabIndex={0}>{line}</code>
      <CopyButton text={line} word="copy" />
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

/** Open the row of a link. */
export function openRow(row: string): void {
  if (row) goTo(encodeURIComponent(row));
}

/** Go to what follows `#` in an address; also where the address says so already, which tells nobody of a change. */
export function goTo(hash: string): void {
  if (location.hash === `#${hash}`) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = hash;
}

/** The rest of a page is drawn for so long after its first part, at most. */
const DRAWN_MS = 5000;
let leaveInView = () => {};

/** Bring an element to the top of the window, and keep it there while what stands above it is still being drawn and
 * nobody scrolls, types or clicks. */
export function keepInView(element: HTMLElement): void {
  leaveInView();
  const show = () => element.scrollIntoView();
  const observer = new ResizeObserver(show);
  const timer = setTimeout(() => leave(), DRAWN_MS);
  const ends = ["wheel", "pointerdown", "touchstart", "keydown"];
  const leave = () => {
    observer.disconnect();
    clearTimeout(timer);
    ends.forEach((each) => removeEventListener(each, leave, true));
  };
  leaveInView = leave;
  ends.forEach((each) => addEventListener(each, leave, true));
  show();
  observer.observe(document.body);
}
