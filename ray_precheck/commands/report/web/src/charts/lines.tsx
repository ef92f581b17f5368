// Lines over one axis, such as headroom over steps, drawn by uPlot.
import uPlot from "uplot";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { shown } from "../format";
import { FactTable } from "../parts";
import type { ChartLine, LineChart, Num } from "../types";
import { category, fitting, FONT, palette, useScheme, useWidth } from "./canvas";
import { shownShort } from "./histogram";
import { cut, cutEnd, logTicks } from "./scale";

const HEIGHT = 280;
// Lines differ in more than color.
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3]];
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const dashOf = (index: number) => DASHES[Math.floor(index / 7 + index) % DASHES.length]!;

/** One axis for all lines: where a line has no point it has undefined, where it is interrupted null. */
export function aligned(series: ChartLine[], isLog: boolean): [number[], ...(Num | undefined)[][]] {
  const all = new Set<number>();
  for (const line of series) for (const x of line.x) if (x !== null) all.add(x);
  const axis = [...all].sort((one, other) => one - other);
  const at = new Map(axis.map((x, index) => [x, index]));
  const columns = series.map((line) => {
    const column = new Array<Num | undefined>(axis.length).fill(undefined);
    line.x.forEach((x, index) => {
      const y = line.y[index] ?? null;
      if (x !== null) column[at.get(x)!] = y !== null && isLog && y <= 0 ? null : y;
    });
    return column;
  });
  return [axis, ...columns];
}

/** The least and the largest value of all lines, and how many values a logarithmic axis cannot show. */
export function extent(chart: LineChart): { low: number; high: number; hidden: number } {
  let [low, high, hidden] = [Infinity, -Infinity, 0];
  for (const { y } of chart.series) for (const value of y) {
    if (value === null) continue;
    if (chart.is_log && value <= 0) hidden++;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return { low, high, hidden };
}

export function LineChartPicture({ chart }: { chart: LineChart }) {
  const frame = useRef<HTMLDivElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const width = useWidth(frame);
  const scheme = useScheme();
  const [at, setAt] = useState<number | null>(null);
  const [off, setOff] = useState<ReadonlySet<number>>(new Set());
  const data = useMemo(() => aligned(chart.series, chart.is_log), [chart]);
  const { low, high, hidden } = useMemo(() => extent(chart), [chart]);
  const isEmpty = !Number.isFinite(low);
  useLayoutEffect(() => {
    if (width === 0 || isEmpty) return;
    const made = new uPlot(options(chart, width, scheme, off, setAt), data as uPlot.AlignedData, place.current!);
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = null;
    };
  }, [chart, width, scheme]);
  const toggled = (index: number) => {
    const next = new Set(off);
    if (!next.delete(index)) next.add(index);
    setOff(next);
    plot.current?.setSeries(index + 1, { show: !next.has(index) });
  };
  const pressed = (event: KeyboardEvent) => {
    const step = ({ ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 } as Record<string, number>)[event.key];
    const made = plot.current;
    if (step === undefined || !made) return;
    event.preventDefault();
    const last = data[0].length - 1;
    const index = Math.min(last, Math.max(0, (at ?? (step > 0 ? -1 : last + 1)) + step));
    made.setCursor({ left: made.valToPos(data[0][index]!, "x"), top: 0 });
    setAt(index);
  };
  const limit = chart.limit === null ? "" : `; the limit is ${shown(chart.limit)}`;
  const lines = `${chart.series.length} ${chart.series.length === 1 ? "line" : "lines"}`;
  const said = isEmpty ? "no values" : `${lines}, ${chart.y_title} from ${shown(low)} to ${shown(high)}${limit}`;
  return (
    <figure>
      <figcaption><b>{chart.title}</b> <span>{said}{hidden > 0
        && `; ${hidden.toLocaleString("en-US")} values of 0 and below cannot stand on a logarithmic axis`}</span>
      </figcaption>
      {!isEmpty && (
        <ul class="legend" aria-label={`Lines, ${chart.x_title}`}>
          {chart.series.map((line, index) => (
            <li>
              <button type="button" aria-pressed={!off.has(index)} onClick={() => toggled(index)}>
                <svg width="26" height="10" aria-hidden="true">
                  <line x1="1" x2="25" y1="5" y2="5" stroke={category(index, scheme)} stroke-width="2.5"
                    stroke-dasharray={dashOf(index).join(" ")} />
                </svg> <span class="name">{cut(line.name, 80)}</span>
              </button>
              <span class="value">{at === null ? "" : shown(data[index + 1]![at] ?? null)}</span>
            </li>
          ))}
        </ul>
      )}
      <p class="reading" role="status" aria-live="polite">
        {at === null ? `arrow keys or the pointer read values; drag to enlarge, double click for all`
          : `${chart.x_title} ${shown(data[0][at])}: ${chart.series.flatMap((line, index) =>
            off.has(index) ? [] : [`${cut(line.name, 80)} ${shown(data[index + 1]![at] ?? null)}`]).slice(0, 8).join(", ")}`}
      </p>
      <div class="frame" ref={frame} style={{ minHeight: isEmpty ? "0" : `${HEIGHT}px` }}>
        <div ref={place} role="img" aria-label={`${chart.title}: ${said}`} tabIndex={0} onKeyDown={pressed} />
      </div>
      <FactTable title={chart.title} headings={[chart.x_title, ...chart.series.map((line) => line.name)]}
        total={data[0].length}
        rows={() => data[0].slice(0, 200).map((x, index) => [
          shown(x), ...chart.series.map((_, line) => shown(data[line + 1]![index] ?? null))])} />
    </figure>
  );
}

function options(
  chart: LineChart, width: number, scheme: Parameters<typeof palette>[0], off: ReadonlySet<number>,
  read: (at: number | null) => void,
): uPlot.Options {
  const colors = palette(scheme);
  // There is no step 0.5.
  const isWhole = chart.series.every(({ x }) => x.every((each) => each === null || Number.isInteger(each)));
  const axis = (label: string, more: uPlot.Axis = {}): uPlot.Axis => ({
    label, labelFont: FONT, font: FONT, stroke: colors.ink, labelSize: 18,
    grid: { stroke: colors.line, width: 1 }, ticks: { stroke: colors.line, width: 1, size: 4 },
    values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shownShort(tick))), ...more,
  });
  const range = (_: uPlot, from: number | null, to: number | null): [number | null, number | null] => {
    let [low, high] = [from ?? 1, to ?? 1];
    if (chart.limit !== null && (!chart.is_log || chart.limit > 0)) {
      [low, high] = [Math.min(low, chart.limit), Math.max(high, chart.limit)];
    }
    return chart.is_log ? uPlot.rangeLog(low, high, 10, false) : uPlot.rangeNum(low, high, 0.1, true);
  };
  return {
    width, height: HEIGHT, legend: { show: false },
    scales: { x: { time: false }, y: { distr: chart.is_log ? 3 : 1, range } },
    axes: [
      axis(chart.x_title, { size: 30, ...(isWhole && { incrs: WHOLE }) }),
      axis(fitting(chart.y_title, HEIGHT - 10, 200, cutEnd), {
        size: 58, ...(chart.is_log && { splits: (_, __, low, high) => logTicks(low, high, 6) }),
      }),
    ],
    series: [{}, ...chart.series.map((_, index): uPlot.Series => ({
      stroke: category(index, scheme), width: 2, dash: dashOf(index), show: !off.has(index),
    }))],
    cursor: { y: false, drag: { x: true, y: false } },
    hooks: {
      setCursor: [(made) => read(made.cursor.idx ?? null)],
      draw: [(made) => drawLimit(made, chart.limit, colors.ink)],
    },
  };
}

function drawLimit(plot: uPlot, limit: Num, ink: string) {
  if (limit === null) return;
  const { left, top, width, height } = plot.bbox;
  const y = Math.round(plot.valToPos(limit, "y", true));
  if (!(y >= top && y <= top + height)) return;
  const context = plot.ctx;
  const ratio = devicePixelRatio || 1;
  context.save();
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = 1.5 * ratio;
  context.setLineDash([6 * ratio, 3 * ratio]);
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(left + width, y);
  context.stroke();
  context.font = `${12 * ratio}px system-ui, sans-serif`;
  context.textAlign = "right";
  context.textBaseline = y - top < 16 * ratio ? "top" : "bottom";
  context.fillText(`limit ${shown(limit)}`, left + width - 4 * ratio, y + (y - top < 16 * ratio ? 3 : -3) * ratio);
  context.restore();
}
