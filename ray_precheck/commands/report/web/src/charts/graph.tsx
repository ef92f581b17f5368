// The errors along the data flow of a run: a graph that opens around a call, its own error beside what it inherited.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { SIGNS, shown, visible } from "../format";
import { FactTable, RowLink } from "../parts";
import { wordsWith } from "../rows";
import type { FlowGraph } from "../types";
import { around, barOf, beyondBorder, decadesOf, hidden, linked, nextInError, readFlow, toneOf, type Flow } from "./flow";
import { NODE_HEIGHT, NODE_WIDTH, beside, drawingOf, type Drawing, type Line, type Placed } from "./graph_layout";
import { FlowStrip } from "./strip";

/** How many calls a first picture has, and how many steps it goes up and down. */
const FIRST = 60;
const HOPS = 2;
/** How many more a click opens; above the most, only what is around the clicked call stays. */
const MORE = 24;
const MOST = 150;
const MOST_FOUND = 20;
let made = 0;

export function FlowGraphPicture({ chart }: { chart: FlowGraph }) {
  const [flow, setFlow] = useState<Flow | null>(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    let isOver = false;
    readFlow(chart).then(
      (found) => { if (!isOver) setFlow(found); },
      (error: unknown) => { if (!isOver) setTrouble(String(error)); },
    );
    return () => { isOver = true; };
  }, [chart]);
  return (
    <figure class="flow">
      <figcaption>
        {chart.title} ({chart.unit}): each call with its own error and what it inherited, in the order of the data.
        {chart.pairs.length > 0 && " Dashed lines join calls that stand for each other."} The strip has all calls of the run;
        a click opens the graph there.
      </figcaption>
      {trouble && <p class="note">The flow cannot be read: {trouble}</p>}
      {!flow ? <p class="waiting">reading the flow ...</p>
        : flow.count === 0 ? <p>No call is known.</p> : <Opened chart={chart} flow={flow} />}
    </figure>
  );
}

function Opened({ chart, flow }: { chart: FlowGraph; flow: Flow }) {
  const first = chart.starts[0] ?? Math.max(0, nextInError(flow, -1, 1));
  const [steps, setSteps] = useState(HOPS);
  const [seen, setSeen] = useState<ReadonlySet<number>>(() => around(flow, first, HOPS, FIRST));
  const [current, setCurrent] = useState(first);
  const [hovered, setHovered] = useState(-1);
  // How often the keyboard was asked to go to the current call.
  const [wish, setWish] = useState(0);
  const drawing = useMemo(() => drawingOf(flow, seen), [flow, seen]);
  const decades = useMemo(() => decadesOf(flow.own, flow.inherited), [flow]);
  const openAt = (call: number, count = HOPS) => {
    if (call < 0) return;
    setSteps(count);
    setSeen(around(flow, call, count, count > HOPS ? MOST : FIRST));
    setCurrent(call);
  };
  const openMore = (call: number, to = call) => {
    setCurrent(to);
    if (hidden(flow, call, seen) === 0) return;
    const more = [to, ...around(flow, call, 1, MORE)];
    setSeen(seen.size + more.length > MOST ? around(flow, to, HOPS, FIRST) : new Set([...seen, ...more]));
  };
  const walk = (key: string) => {
    const shown = beside(flow, drawing, current, key);
    const next = shown >= 0 ? shown : beyondBorder(flow, current, seen, key);
    if (next < 0) return;
    if (shown >= 0) setCurrent(next);
    else openMore(current, next);
    setWish(wish + 1);
  };
  const press = (key: string) => {
    if (key === "Enter" || key === " ") openMore(current);
    else if (key === "+" || key === "-") openAt(current, Math.max(1, steps + (key === "+" ? 1 : -1)));
    else if (key.startsWith("Arrow")) {
      walk(key);
      return true;
    } else return false;
    setWish(wish + 1);
    return true;
  };
  return (
    <>
      <FlowStrip flow={flow} unit={chart.unit} at={current} open={openAt} />
      <Tools
        chart={chart} flow={flow} current={current} open={openAt}
        found={(call) => { openAt(call); setWish(wish + 1); }}
      />
      <p class="tools">
        In the graph the arrow keys walk along the lines, over the border of what is shown, too; Enter opens what is linked to a
        call, + shows a step more around it, − a step less.
      </p>
      <Picture
        flow={flow} drawing={drawing} decades={decades} current={current} wish={wish} seen={seen} title={chart.title}
        press={press} open={openMore} hover={setHovered}
      />
      <Told flow={flow} unit={chart.unit} call={hovered >= 0 ? hovered : current} seen={seen} />
      <ShownTable title={`${chart.title}: the calls that are shown`} unit={chart.unit} flow={flow} drawing={drawing} />
    </>
  );
}

function Tools({ chart, flow, current, open, found }: {
  chart: FlowGraph; flow: Flow; current: number; open: (call: number) => void; found: (call: number) => void;
}) {
  const [before, after] = [nextInError(flow, current, -1), nextInError(flow, current, 1)];
  return (
    <div class="flow-tools">
      {chart.starts.length > 0 && (
        <label>open at <select value={chart.starts.includes(current) ? String(current) : ""} onChange={(event) => {
          if (event.currentTarget.value) open(Number(event.currentTarget.value));
        }}>
          <option value="">a call of note</option>
          {chart.starts.map((call, place) => (
            <option value={String(call)}>{place + 1}. {SIGNS[toneOf(flow, call)]} {visible(flow.names.at(call), 70)}</option>
          ))}
        </select></label>
      )}
      <button type="button" disabled={before < 0} onClick={() => open(before)}>previous in error</button>
      <button type="button" disabled={after < 0} onClick={() => open(after)}>next in error</button>
      <Find flow={flow} found={found} />
    </div>
  );
}

/** A box in which a part of a name is typed, and under it the calls with such a name. */
function Find({ flow, found }: { flow: Flow; found: (call: number) => void }) {
  const [id] = useState(() => `find${made++}`);
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const calls = useMemo(() => {
    const calls: number[] = [];
    if (!text) return calls;
    const marks = wordsWith(flow.names, text);
    for (let call = marks.indexOf(1); call >= 0 && calls.length <= MOST_FOUND; call = marks.indexOf(1, call + 1)) {
      calls.push(call);
    }
    return calls;
  }, [flow, text]);
  const shown = calls.slice(0, MOST_FOUND);
  const at = Math.min(place, shown.length - 1);
  const typed = (next: string) => {
    setText(next);
    setPlace(0);
  };
  const take = (call: number | undefined) => {
    if (call === undefined) return;
    typed("");
    found(call);
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter") take(shown[at]);
    else if (event.key === "Escape") typed("");
    else if (event.key === "ArrowDown") setPlace(Math.min(shown.length - 1, at + 1));
    else if (event.key === "ArrowUp") setPlace(Math.max(0, at - 1));
    else return;
    event.preventDefault();
  };
  return (
    <span class="flow-find" onFocusOut={() => typed("")}>
      <label>find <input
        type="text" role="combobox" autocomplete="off" aria-autocomplete="list" aria-expanded={text !== ""} aria-controls={id}
        aria-activedescendant={text && shown.length ? `${id}-${at}` : undefined} value={text}
        onInput={(event) => typed(event.currentTarget.value)} onKeyDown={key}
      /></label>
      <ul class="flow-found" id={id} role="listbox" aria-label="calls found" hidden={!text}>
        {shown.map((call, index) => (
          // The box keeps the keyboard until a call is taken.
          <li
            id={`${id}-${index}`} role="option" aria-selected={index === at} onMouseDown={(event) => event.preventDefault()}
            onClick={() => take(call)}
          >{SIGNS[toneOf(flow, call)]} {visible(flow.names.at(call), 90)}</li>
        ))}
        {text && shown.length === 0 && <li role="option" aria-selected="false" aria-disabled="true">No call is named so.</li>}
        {calls.length > MOST_FOUND && <li role="option" aria-selected="false" aria-disabled="true">and more</li>}
      </ul>
    </span>
  );
}

interface PictureOf {
  flow: Flow; drawing: Drawing; decades: [number, number]; current: number; wish: number; seen: ReadonlySet<number>;
  title: string; press: (key: string) => boolean; open: (call: number) => void; hover: (call: number) => void;
}

function Picture({ flow, drawing, decades, current, wish, seen, title, press, open, hover }: PictureOf) {
  const [id] = useState(() => `flow${made++}`);
  const box = useRef<HTMLDivElement>(null);
  const granted = useRef(wish);
  useEffect(() => {
    const node = drawing.nodes.find((each) => each.call === current);
    if (!node || !box.current) return;
    const { clientWidth, clientHeight } = box.current;
    box.current.scrollTo(node.x - clientWidth / 2, node.y - clientHeight / 2);
    if (wish !== granted.current) document.getElementById(`${id}-${current}`)?.focus({ preventScroll: true });
    granted.current = wish;
  }, [current, drawing, wish]);
  const key = (event: KeyboardEvent) => {
    if (!event.altKey && !event.ctrlKey && !event.metaKey && press(event.key)) event.preventDefault();
  };
  return (
    <div class="flow-box" ref={box}>
      <svg
        width={drawing.width} height={drawing.height} role="group" onKeyDown={key}
        aria-label={`${title}: ${drawing.nodes.length} of ${flow.count.toLocaleString("en-US")} calls; arrow keys walk along `
          + "the edges, Enter opens more, plus and minus change how many steps around are shown"}
      >
        <defs>
          <marker id={`${id}-tip`} viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0 L8 4 L0 8 z" class="arrow" />
          </marker>
        </defs>
        {drawing.lines.map((line) => <path class="edge" d={pathOf(line)} marker-end={`url(#${id}-tip)`} />)}
        {drawing.pairs.map((line) => <path class="pair" d={pathOf(line)} />)}
        {drawing.nodes.map((node) => (
          <Node
            key={node.call} id={`${id}-${node.call}`} flow={flow} node={node} decades={decades}
            isCurrent={node.call === current} more={hidden(flow, node.call, seen)} open={open} hover={hover}
          />
        ))}
      </svg>
    </div>
  );
}

function pathOf(line: Line): string {
  return `M${line.points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join(" L")}`;
}

function Node({ id, flow, node, decades, isCurrent, more, open, hover }: {
  id: string; flow: Flow; node: Placed; decades: [number, number]; isCurrent: boolean; more: number;
  open: (call: number) => void; hover: (call: number) => void;
}) {
  const { call } = node;
  const tone = toneOf(flow, call);
  return (
    <g
      class={`node ${tone}${isCurrent ? " current" : ""}`}
      transform={`translate(${node.x - NODE_WIDTH / 2} ${node.y - NODE_HEIGHT / 2})`}
    >
      <rect
        // An attribute of SVG has its case: Preact would write tabIndex as it stands.
        id={id} class="box" width={NODE_WIDTH} height={NODE_HEIGHT} rx="4" role="button" tabindex={isCurrent ? 0 : -1}
        aria-label={`${sentenceOf(flow, call)}${more ? `; opens ${more} more` : ""}`}
        onClick={() => open(call)} onMouseEnter={() => hover(call)} onMouseLeave={() => hover(-1)}
      />
      <g aria-hidden="true">
        <text x="8" y="17" class="node-name">{SIGNS[tone]} {visible(flow.names.at(call), 27)}</text>
        <ErrorBar word="own" value={flow.own[call]!} decades={decades} y={24} kind="own" />
        <ErrorBar word="inherited" value={flow.inherited[call]!} decades={decades} y={42} kind="inherited" />
        {more > 0 && (
          // On the lower border, where no number stands.
          <>
            <rect class="more-box" x={NODE_WIDTH - 14 - 8 * String(more).length - 10} y={NODE_HEIGHT - 7} rx="7" height="14"
              width={8 * String(more).length + 16} />
            <text x={NODE_WIDTH - 12} y={NODE_HEIGHT + 4} class="more">+{more}</text>
          </>
        )}
      </g>
    </g>
  );
}

function ErrorBar({ word, value, decades, y, kind }: {
  word: string; value: number; decades: [number, number]; y: number; kind: string;
}) {
  return (
    <>
      <text x="8" y={y + 10} class="bar-word">{word}</text>
      <rect x="62" y={y + 2} width="80" height="9" class="bar-track" />
      <rect x="62" y={y + 2} width={(80 * barOf(value, decades)).toFixed(1)} height="9" class={`bar-${kind}`} />
      <text x="147" y={y + 10} class="bar-value">{shown(value)}</text>
    </>
  );
}

function sentenceOf(flow: Flow, call: number): string {
  const text = call < flow.texts.length ? flow.texts.at(call) : "";
  return `${visible(flow.names.at(call), 200)}: ${toneOf(flow, call)}, own error ${shown(flow.own[call])}, inherited `
    + `${shown(flow.inherited[call])}${text && `. ${visible(text, 300)}`}`;
}

/** What is known of the call under the pointer or the keyboard. */
function Told({ flow, unit, call, seen }: { flow: Flow; unit: string; call: number; seen: ReadonlySet<number> }) {
  const tone = toneOf(flow, call);
  const name = flow.names.at(call);
  const more = hidden(flow, call, seen);
  const isAlone = [flow.before, flow.after, flow.partners].every((links) => linked(links, call).length === 0);
  const text = call < flow.texts.length ? flow.texts.at(call) : "";
  return (
    <p class="flow-told" aria-live="polite">
      <span class={`badge ${tone}`}><span aria-hidden="true">{SIGNS[tone]}</span> {tone}</span>
      <RowLink row={flow.rows.at(call)}><span class="name">{visible(name)}</span></RowLink>, call {(call + 1).toLocaleString("en-US")} of{" "}
      {flow.count.toLocaleString("en-US")}: own error <b>{shown(flow.own[call])}</b>, inherited{" "}
      <b>{shown(flow.inherited[call])}</b> {unit}.{text && ` ${visible(text)}`}
      {isAlone && " Nothing is known to flow to or from it; beside it stand the calls before and after it."}
      {more > 0 && ` ${more} more ${more === 1 ? "call is" : "calls are"} linked to it: click it to show them.`}
    </p>
  );
}

function ShownTable({ title, unit, flow, drawing }: { title: string; unit: string; flow: Flow; drawing: Drawing }) {
  const rows = useMemo(() => drawing.nodes.map(({ call }) => [
    (call + 1).toLocaleString("en-US"), visible(flow.names.at(call)), toneOf(flow, call), shown(flow.own[call]),
    shown(flow.inherited[call]), namesOf(flow, linked(flow.before, call)), namesOf(flow, linked(flow.partners, call)),
  ]), [flow, drawing]);
  const headings = ["in order", "call", "verdict", `own (${unit})`, `inherited (${unit})`, "takes from", "stands for"];
  return <FactTable title={title} headings={headings} rows={rows} />;
}

function namesOf(flow: Flow, calls: Uint32Array): string {
  return Array.from(calls.subarray(0, 8), (call) => visible(flow.names.at(call), 200)).join(", ");
}
