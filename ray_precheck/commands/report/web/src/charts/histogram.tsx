// How many elements have an error in each bin, beside the limit.
import { useRef, useState } from "preact/hooks";
import { shown } from "../format";
import { FactTable } from "../parts";
import type { Histogram, Num } from "../types";
import { Tip, useWidth } from "./canvas";
import { countPlace, edgePlaces, everyNth, logTicks, placeOf } from "./scale";

const HEIGHT = 204;
const [LEFT, RIGHT, TOP, BOTTOM] = [46, 20, 32, 34];

/** How many elements are in bins wholly beyond the limit, in the bin that holds it, and in all. */
export function beyondLimit(chart: Histogram): { beyond: number; around: number; all: number } {
  let [beyond, around, all] = [0, 0, 0];
  chart.counts.forEach((count, bin) => {
    all += count;
    if (chart.limit === null) return;
    const low = chart.edges[bin] ?? (bin === 0 ? -Infinity : Infinity);
    const high = chart.edges[bin + 1] ?? Infinity;
    if (low >= chart.limit) beyond += count;
    else if (high > chart.limit) around += count;
  });
  return { beyond, around, all };
}

/** A histogram without the empty bins at its ends; the bin that holds the limit stays. */
export function trimmed(chart: Histogram): Histogram {
  const { counts, edges, limit } = chart;
  const isKept = (bin: number) => counts[bin]! > 0
    || (limit !== null && (edges[bin] ?? -Infinity) <= limit && limit <= (edges[bin + 1] ?? Infinity));
  const kept = [...counts.keys()].filter(isKept);
  if (kept.length === 0) return chart;
  const [first, last] = [kept[0]!, kept.at(-1)!];
  return { ...chart, counts: counts.slice(first, last + 1), edges: edges.slice(first, last + 2) };
}

/** A bin in words; its ends may be open. */
export function binWords(low: Num, high: Num): string {
  if (low === null) return high === null ? "all" : `below ${shown(high)}`;
  return high === null ? `${shown(low)} and above, or not finite` : `${shown(low)} to ${shown(high)}`;
}

/** The edges that have a number: every n-th, and of a logarithmic scale powers of ten, where it has two. */
export function edgeTicks(edges: Num[], isLog: boolean, every: number): number[] {
  const closed = [...edges.keys()].filter((index) => Number.isFinite(edges[index] ?? NaN));
  const isPower = (index: number) => Math.abs(Math.log10(edges[index]!) - Math.round(Math.log10(edges[index]!))) < 1e-6;
  const powers = isLog ? closed.filter((index) => edges[index]! > 0 && isPower(index)) : [];
  const chosen = powers.length > 1 ? powers : closed;
  const apart = chosen.length > 1 ? chosen[1]! - chosen[0]! : 1;
  const step = Math.ceil(every / apart);
  return chosen.filter((_, place) => place % step === 0);
}

export function HistogramPicture({ chart: whole }: { chart: Histogram }) {
  const chart = trimmed(whole);
  const frame = useRef<HTMLDivElement>(null);
  const width = Math.min(560, useWidth(frame));
  const [chosen, setBin] = useState<number | null>(null);
  const { counts, edges, limit } = chart;
  const bin = chosen !== null && chosen < counts.length ? chosen : null;
  const most = Math.max(1, ...counts);
  const places = edgePlaces(edges, chart.is_log);
  const [wide, high] = [Math.max(10, width - LEFT - RIGHT), HEIGHT - TOP - BOTTOM];
  const x = (place: number) => LEFT + place * wide;
  const y = (count: number) => TOP + high * (1 - countPlace(count, most));
  const limitAt = limit === null ? null : placeOf(limit, edges, places, chart.is_log);
  const { beyond, around, all } = beyondLimit(chart);
  const many = (count: number) => count.toLocaleString("en-US");
  const said = limit === null ? `${many(all)} elements`
    : `${many(beyond)} of ${many(all)} elements are beyond the limit ${shown(limit)}`
      + (around ? `, ${many(around)} more are in the bin that holds it` : "");
  const ticks = edgeTicks(edges, chart.is_log, everyNth(wide / counts.length, 58));
  const pressed = (event: KeyboardEvent) => {
    const step = ({ ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 } as Record<string, number>)[event.key];
    if (step === undefined) return;
    setBin(Math.min(counts.length - 1, Math.max(0, (bin ?? (step > 0 ? -1 : counts.length)) + step)));
    event.preventDefault();
  };
  return (
    <figure>
      <figcaption><b>{chart.title}</b> <span>{said}</span></figcaption>
      <div class="frame" ref={frame}>
        {width > 0 && (
          <svg width={width} height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} role="img" tabindex={0}
            aria-label={`${chart.title}: ${said}`} onKeyDown={pressed} onBlur={() => setBin(null)}
            onPointerLeave={() => setBin(null)}>
            {logTicks(1, most, 5).map((tick) => (
              <>
                <line x1={LEFT} x2={LEFT + wide} y1={y(tick)} y2={y(tick)} class="gridline" />
                <text x={LEFT - 5} y={y(tick)} dy=".35em" text-anchor="end">{shownShort(tick)}</text>
              </>
            ))}
            {counts.map((count, each) => (
              <Bin x={[x(places[each]!), x(places[each + 1]!)]} top={y(count)} foot={TOP + high}
                limit={limitAt === null ? null : x(limitAt)}
                isBeyond={limit !== null && (edges[each] ?? (each ? Infinity : -Infinity)) >= limit}
                isHere={each === bin} enter={() => setBin(each)} />
            ))}
            <line x1={LEFT} x2={LEFT + wide} y1={TOP + high} y2={TOP + high} class="axis" />
            {ticks.map((index) => (
              <text x={x(places[index]!)} y={HEIGHT - BOTTOM + 14} text-anchor="middle">
                {shownShort(edges[index]!)}
              </text>
            ))}
            <text x={LEFT + wide / 2} y={HEIGHT - 4} text-anchor="middle">{chart.unit}</text>
            <text x={LEFT} y="10" class="quiet">elements (logarithmic)</text>
            {limitAt !== null && (
              <>
                <line x1={x(limitAt)} x2={x(limitAt)} y1={TOP - 4} y2={TOP + high} class="rule" />
                <text x={x(limitAt)} y="24" text-anchor={limitAt > 0.6 ? "end" : "start"}>limit {shown(limit)}</text>
              </>
            )}
          </svg>
        )}
        <Tip spot={bin === null ? null : { x: x(places[bin]!), y: HEIGHT - 20, width }}>
          {bin !== null && (
            <><b>{many(counts[bin]!)} elements</b><br />{binWords(edges[bin]!, edges[bin + 1]!)} {chart.unit}</>
          )}
        </Tip>
      </div>
      <FactTable title={chart.title} headings={[chart.unit, "elements"]}
        rows={() => counts.flatMap((count, each) =>
          count ? [[binWords(edges[each]!, edges[each + 1]!), many(count)]] : [])} />
    </figure>
  );
}

/** 1e-4 rather than 1.00e-4, for which an axis has no room. */
export const shownShort = (value: number): string =>
  value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4)
    ? value.toExponential(0).replace("e+", "e") : shown(value);

/** One bar; where the limit is in it, the part beyond has the other color. */
function Bin({ x: [begin, end], top, foot, limit, isBeyond, isHere, enter }: {
  x: [number, number]; top: number; foot: number; limit: number | null; isBeyond: boolean; isHere: boolean;
  enter: () => void;
}) {
  const from = begin + 0.5;
  const to = Math.max(from + 0.5, end - 0.5);
  const split = limit === null ? to : Math.min(to, Math.max(from, isBeyond ? from : limit));
  return (
    <g onPointerEnter={enter}>
      <rect x={begin} y={TOP} width={end - begin} height={foot - TOP} class={isHere ? "hit here" : "hit"} />
      <rect x={from} y={top} width={split - from} height={foot - top} class="within" />
      <rect x={split} y={top} width={to - split} height={foot - top} class="beyond" />
    </g>
  );
}
