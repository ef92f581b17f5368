// What ran where and when: lanes on a canvas that can be enlarged and moved.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Strings } from "../blobs";
import { numbers, strings } from "../blobs";
import { seconds } from "../format";
import { FactTable } from "../parts";
import type { TimelineChart } from "../types";
import type { Spot } from "./canvas";
import { category, fitting, FONT, palette, prepared, textWidth, Tip, useScheme, useWidth } from "./canvas";
import type { Scheme } from "./scale";
import { cut, cutEnd, everyNth, linearTicks } from "./scale";
import type { Lane, Spans } from "./spans";
import { drawnSpans, endOf, idleShare, lanesOf, shifted, spanAt, zoomed } from "./spans";

interface Ready { chart: TimelineChart; spans: Spans; names: Strings; name: ArrayLike<number>; lanes: Lane[]; end: number }
type Range = [number, number];

const [TOP, RIGHT] = [22, 70];
// All lanes are seen at once up to some hundred of them; labels are thinned.
const HIGH = 640;
const percent = (share: number): string => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const many = (count: number): string => count.toLocaleString("en-US");

async function read(chart: TimelineChart): Promise<Ready> {
  const [lane, begin, length, stage, name, names] = await Promise.all([
    numbers(chart.lane), numbers(chart.begin), numbers(chart.length), numbers(chart.stage), numbers(chart.name),
    strings(chart.names),
  ]);
  const spans = { lane, begin, length, stage };
  const lanes = lanesOf(spans, chart.lanes.length);
  return { chart, spans, names, name, lanes, end: endOf(lanes) };
}

export function TimelineChartPicture({ chart }: { chart: TimelineChart }) {
  const [ready, setReady] = useState<Ready | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    let isOver = false;
    read(chart).then(
      (found) => { if (!isOver) setReady(found); }, (error: unknown) => setFailed(String(error)));
    return () => { isOver = true; };
  }, [chart]);
  if (failed) return <p class="note">{chart.title} cannot be read: {failed}</p>;
  if (ready) return <Timeline ready={ready} />;
  return (
    <figure>
      <figcaption><b>{chart.title}</b></figcaption>
      <div style={{ minHeight: `${heightOf(chart) + 90}px` }} />
    </figure>
  );
}

const rowHeight = (lanes: number): number => Math.max(5, Math.min(24, HIGH / Math.max(1, lanes)));
const heightOf = ({ lanes }: TimelineChart): number => TOP + lanes.length * rowHeight(lanes.length) + 4;

function Timeline({ ready }: { ready: Ready }) {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  const scheme = useScheme();
  const { chart, lanes, spans, end } = ready;
  const height = heightOf(chart);
  // null: the whole run, also when it has become longer.
  const [part, setPart] = useState<Range | null>(null);
  const range: Range = part ?? [0, end || 1];
  const setRange = (next: Range) => setPart(next[1] - next[0] < end ? next : null);
  // [lane, place in it] of the span under the pointer or the cursor
  const [chosen, setAt] = useState<[number, number] | null>(null);
  const at = chosen && chosen[1] < (lanes[chosen[0]]?.spans.length ?? 0) ? chosen : null;
  const [pointer, setPointer] = useState<number | null>(null);
  const drag = useRef<{ x: number; range: Range } | null>(null);
  const high = rowHeight(lanes.length);
  const left = useMemo(
    () => Math.ceil(Math.min(width * 0.25, Math.max(...chart.lanes.map((lane) => textWidth(cut(lane, 40)))))) + 8,
    [chart, width]);
  const wide = Math.max(20, width - left - RIGHT);
  const timeAt = (x: number) => range[0] + ((x - left) / wide) * (range[1] - range[0]);
  const xAt = (time: number) => left + ((time - range[0]) / (range[1] - range[0])) * wide;
  useLayoutEffect(() => {
    if (width > 0) drawTimeline(canvas.current!, { ready, range, at, left, wide, high, width, height, scheme });
  }, [ready, part, chosen, left, width, scheme]);

  const moved = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (drag.current) {
      const by = ((drag.current.x - x) / wide) * (drag.current.range[1] - drag.current.range[0]);
      setRange(shifted(drag.current.range, by, end));
      return;
    }
    const lane = Math.floor((y - TOP) / high);
    const slack = (3 / wide) * (range[1] - range[0]);
    const place = lanes[lane] && x >= left ? spanAt(spans, lanes[lane], timeAt(x), slack) : -1;
    setPointer(x);
    if (place < 0) setAt(null);
    else if (at?.[0] !== lane || at[1] !== place) setAt([lane, place]);
  };
  const turned = (event: WheelEvent) => {
    // Without a focus the wheel moves the page, as everywhere.
    if (!event.ctrlKey && document.activeElement !== canvas.current) return;
    event.preventDefault();
    const box = canvas.current!.getBoundingClientRect();
    setRange(zoomed(range, 1.0015 ** event.deltaY, timeAt(event.clientX - box.left), end));
  };
  const show = (next: [number, number]) => {
    const span = lanes[next[0]]!.spans[next[1]]!;
    const [from, to] = [spans.begin[span]!, spans.begin[span]! + spans.length[span]!];
    setPointer(null);
    setAt(next);
    if (from < range[0] || to > range[1]) setRange(shifted(range, (from + to) / 2 - (range[0] + range[1]) / 2, end));
  };
  const middle = () => {
    if (!at) return (range[0] + range[1]) / 2;
    const span = lanes[at[0]]!.spans[at[1]]!;
    return Math.min(range[1], Math.max(range[0], spans.begin[span]! + spans.length[span]! / 2));
  };
  const zoom = (factor: number) => setRange(zoomed(range, factor, middle(), end));
  const move = (share: number) => setRange(shifted(range, share * (range[1] - range[0]), end));
  const whole = () => setPart(null);
  const stepped = (by: number) => {
    if (!at) return show(nearest(lanes, spans, lanes.findIndex((lane) => lane.spans.length > 0), range[0]));
    const count = lanes[at[0]]!.spans.length;
    show([at[0], Math.min(count - 1, Math.max(0, at[1] + by))]);
  };
  const lane = (by: number) => {
    for (let next = (at?.[0] ?? -1) + by; lanes[next]; next += by) {
      if (lanes[next]!.spans.length) return show(nearest(lanes, spans, next, middle()));
    }
  };
  const pressed = (event: KeyboardEvent) => {
    const keys: Record<string, () => void> = {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": whole, Escape: () => setAt(null),
      ArrowLeft: () => (event.shiftKey ? move(-0.25) : stepped(-1)),
      ArrowRight: () => (event.shiftKey ? move(0.25) : stepped(1)),
      ArrowUp: () => lane(-1), ArrowDown: () => lane(1), Home: () => stepped(-1e9), End: () => stepped(1e9),
    };
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!act || spans.lane.length === 0) return;
    act();
    event.preventDefault();
  };
  const idle = useMemo(() => lanes.map((each) => idleShare(each, end)), [lanes, end]);
  const mean = idle.reduce((sum, each) => sum + each, 0) / Math.max(1, idle.length);
  const most = idle.indexOf(Math.max(...idle));
  const said = `${many(spans.lane.length)} pieces on ${lanes.length} ${lanes.length === 1 ? "lane" : "lanes"} in `
    + `${seconds(end)}; ${percent(mean)} of the time idle`
    + (lanes.length > 1 ? `, most on ${chart.lanes[most]} (${percent(idle[most] ?? 0)})` : "");
  const here = at && lanes[at[0]]!.spans[at[1]]!;
  const spot: Spot | null = here === null || !at ? null : {
    x: Math.min(left + wide, Math.max(left, pointer ?? xAt(spans.begin[here]!))), y: TOP + (at[0] + 1) * high, width };
  return (
    <figure>
      <figcaption><b>{chart.title}</b> <span>{said}</span></figcaption>
      <ul class="legend">{chart.stages.map((stage, index) => (
        <li><svg width="12" height="12" aria-hidden="true">
          <rect width="12" height="12" fill={category(index, scheme)} /></svg> {stage || "no stage"}</li>
      ))}<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" class="hit here" /></svg> idle</li></ul>
      <p class="tools">
        <button type="button" onClick={() => zoom(0.5)} aria-label="enlarge">+</button>
        <button type="button" onClick={() => zoom(2)} aria-label="make smaller">−</button>
        <button type="button" onClick={() => move(-0.5)} aria-label="earlier">◂</button>
        <button type="button" onClick={() => move(0.5)} aria-label="later">▸</button>
        <button type="button" onClick={whole}>whole run</button>
        <span class="what">{tickText(range[0], range[1] - range[0])} to {tickText(range[1], range[1] - range[0])}; drag moves, the wheel enlarges after a click, arrow
          keys go from piece to piece</span>
      </p>
      <div class="frame" ref={frame} style={{ minHeight: `${height}px` }}>
        <canvas ref={canvas} role="img" aria-label={`${chart.title}: ${said}`} tabIndex={0} class="moves"
          onPointerMove={moved} onPointerLeave={() => { if (!drag.current) setAt(null); }} onWheel={turned}
          onPointerDown={(event) => {
            canvas.current!.setPointerCapture(event.pointerId);
            drag.current = { x: event.clientX - canvas.current!.getBoundingClientRect().left, range };
          }}
          onPointerUp={() => { drag.current = null; }} onPointerCancel={() => { drag.current = null; }}
          onKeyDown={pressed} onBlur={() => setAt(null)} />
        <Tip spot={spot}>
          {at && here !== null && (
            <><b class="name">{ready.names.at(ready.name[here]!)}</b><br />
              {chart.stages[spans.stage[here]!]} on {chart.lanes[at[0]]}<br />
              {seconds(spans.length[here]!)}, from {tickText(spans.begin[here]!, range[1] - range[0])} on</>
          )}
        </Tip>
      </div>
      {chart.marks.length > 0 && (
        <ul class="marks">{chart.marks.slice(0, 50).map(([time, text]) => (
          <li>▼ <button type="button" onClick={() => setRange(shifted([time - end / 40, time + end / 40], 0, end))}>
            at {seconds(time)}</button> {text}</li>
        ))}</ul>
      )}
      <FactTable title={`${chart.title}: lanes`} label="lanes as a table" headings={["lane", "pieces", "busy", "idle", "idle share"]}
        rows={() => lanes.map((each, index) => [
          chart.lanes[index], many(each.spans.length), seconds(each.busy), seconds(Math.max(0, end - each.busy)),
          percent(idle[index]!)])} />
      <FactTable title={`${chart.title}: the longest pieces`} label="longest pieces as a table" total={spans.lane.length}
        headings={["name", "stage", "lane", "begin", "length"]}
        rows={() => [...longest(spans, 200)].map((span) => [
          ready.names.at(ready.name[span]!), chart.stages[spans.stage[span]!], chart.lanes[spans.lane[span]!],
          seconds(spans.begin[span]!), seconds(spans.length[span]!)])} />
    </figure>
  );
}

/** The span of a lane that is nearest to a moment. */
function nearest(lanes: Lane[], spans: Spans, lane: number, moment: number): [number, number] {
  return [lane, Math.max(0, spanAt(spans, lanes[lane]!, moment, Infinity))];
}

function longest(spans: Spans, count: number): Uint32Array {
  const order = Uint32Array.from({ length: spans.length.length }, (_, index) => index);
  return order.sort((one, other) => spans.length[other]! - spans.length[one]!).subarray(0, count);
}

interface Drawing {
  ready: Ready; range: Range; at: [number, number] | null; left: number; wide: number;
  high: number; width: number; height: number; scheme: Scheme;
}

function drawTimeline(canvas: HTMLCanvasElement, drawing: Drawing) {
  const { ready, range, at, left, wide, high, width, height, scheme } = drawing;
  const { chart, spans, lanes, end } = ready;
  const [from, to] = range;
  const colors = palette(scheme);
  const context = prepared(canvas, width, height);
  const xAt = (time: number) => left + ((time - from) / (to - from)) * wide;
  const stages = chart.stages.map((_, index) => category(index, scheme));
  context.fillStyle = colors.line;
  for (const tick of linearTicks(from, to, Math.max(2, wide / 110))) {
    context.fillStyle = colors.line;
    context.fillRect(xAt(tick), TOP - 4, 1, height - TOP);
    context.fillStyle = colors.quiet;
    context.textAlign = "center";
    context.fillText(tickText(tick, to - from), xAt(tick), 8);
  }
  const gap = high > 8 ? 2 : 0;
  const every = everyNth(high, 14);
  lanes.forEach((lane, index) => {
    const y = TOP + index * high;
    context.fillStyle = colors.soft;
    context.fillRect(left, y + gap / 2, wide, high - gap);
    drawnSpans(spans, lane, from, to, wide, (x, stop, stage, share, place) => {
      context.fillStyle = stages[stage]!;
      context.globalAlpha = 0.25 + 0.75 * share;
      // A hair of ground between neighbours of one stage shows that they are two.
      const hair = place >= 0 && stop - x > 4 ? 0.6 : 0;
      context.fillRect(left + x, y + gap / 2, stop - x - hair, high - gap);
      if (place < 0 || stop - x < 56 || high < 14) return;
      context.globalAlpha = 1;
      context.fillStyle = scheme === "dark" ? "#111" : "#fff";
      context.textAlign = "left";
      const name = ready.names.at(ready.name[lane.spans[place]!]!);
      context.fillText(fitting(name, stop - x - 8, Math.floor((stop - x) / 4), cutEnd), left + x + 4, y + high / 2);
    });
    context.globalAlpha = 1;
    if (index % every !== 0) return;
    context.fillStyle = colors.ink;
    context.textAlign = "right";
    context.fillText(fitting(chart.lanes[index]!, left - 8, 40), left - 6, y + high / 2);
    context.fillStyle = colors.quiet;
    context.textAlign = "left";
    context.fillText(`${percent(idleShare(lane, end))} idle`, left + wide + 6, y + high / 2);
  });
  context.font = FONT;
  for (const [time] of chart.marks) {
    if (time < from || time > to) continue;
    context.fillStyle = colors.ink;
    context.fillRect(xAt(time) - 0.75, TOP - 6, 1.5, height - TOP);
    context.textAlign = "center";
    context.fillText("▼", xAt(time), TOP - 5);
  }
  if (!at) return;
  const span = lanes[at[0]]!.spans[at[1]]!;
  const [begin, stop] = [xAt(spans.begin[span]!), xAt(spans.begin[span]! + spans.length[span]!)];
  const [x, x2] = [Math.max(left, begin), Math.min(left + wide, Math.max(begin + 2, stop))];
  if (x2 < x) return;
  context.strokeStyle = colors.ink;
  context.lineWidth = 2;
  context.strokeRect(x - 1, TOP + at[0] * high, x2 - x + 2, high);
}

/** A moment on the axis, to as many digits as the part that is seen needs. */
export function tickText(time: number, width: number): string {
  if (width < 1e-3) return `${Number((time * 1e6).toPrecision(12)).toLocaleString("en-US")} µs`;
  if (width < 2) return `${Number((time * 1e3).toPrecision(9)).toLocaleString("en-US")} ms`;
  return `${Number(time.toPrecision(6)).toLocaleString("en-US")} s`;
}
