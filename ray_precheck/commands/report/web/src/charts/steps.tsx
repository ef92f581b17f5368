// Bars in the order in which they happened: the trials of a bisect, and how the suspects became fewer.
import { useRef, useState } from "preact/hooks";
import { shown, SIGNS } from "../format";
import { FactTable } from "../parts";
import type { StepChart } from "../types";
import { Tip, toneColor, useWidth } from "./canvas";
import { cut, cutEnd, everyNth, linearTicks } from "./scale";

const HEIGHT = 210;
const [LEFT, RIGHT, TOP, BOTTOM] = [54, 10, 34, 30];
const [LEAST, MOST] = [7, 64];

export function StepChartPicture({ chart }: { chart: StepChart }) {
  const frame = useRef<HTMLDivElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const wide = useWidth(frame);
  const [at, setAt] = useState<number | null>(null);
  const { steps } = chart;
  if (steps.length === 0) return <p>{chart.title}: nothing was tried.</p>;
  const most = Math.max(1, ...steps.map((step) => step.value ?? 0));
  const each = Math.max(LEAST, Math.min(MOST, (wide - LEFT - RIGHT) / steps.length));
  const width = Math.max(wide, LEFT + RIGHT + each * steps.length);
  const foot = HEIGHT - BOTTOM;
  const y = (value: number) => foot - (foot - TOP) * (value / most);
  const every = everyNth(each, Math.max(...steps.map((step) => Math.min(14, step.name.length))) * 7 + 8);
  const [first, last] = [steps[0]!, steps.at(-1)!];
  const said = `${steps.length} steps, from ${shown(first.value)} to ${shown(last.value)} ${chart.unit}`;
  const pressed = (event: KeyboardEvent) => {
    const step = ({ ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 } as Record<string, number>)[event.key];
    if (step === undefined) return;
    setAt(Math.min(steps.length - 1, Math.max(0, (at ?? (step > 0 ? -1 : steps.length)) + step)));
    event.preventDefault();
  };
  const here = at === null ? null : steps[at] ?? null;
  return (
    <figure>
      <figcaption><b>{chart.title}</b> <span>{said}</span></figcaption>
      <div class="frame" ref={frame}>
        {wide > 0 && (
          <div class="wide" ref={scroller}><svg width={width} height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} role="img" tabindex={0}
            aria-label={`${chart.title}: ${said}`} onKeyDown={pressed} onBlur={() => setAt(null)}
            onPointerLeave={() => setAt(null)}>
            {linearTicks(0, most, 5).map((tick) => (
              <>
                <line x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} class="gridline" />
                <text x={LEFT - 6} y={y(tick)} dy=".35em" text-anchor="end">{shown(tick)}</text>
              </>
            ))}
            <text x={LEFT} y="10" class="quiet">{chart.unit}</text>
            {steps.map((step, index) => {
              const [x, top] = [LEFT + index * each, Math.min(foot - 2, y(step.value ?? 0))];
              return (
                <g onPointerEnter={() => setAt(index)}>
                  <rect x={x} y={TOP} width={each} height={foot - TOP} class={index === at ? "hit here" : "hit"} />
                  <rect x={x + 1} y={top} width={Math.max(1, each - 2)} height={foot - top} fill={toneColor(step.tone)} />
                  {each >= 12 && (
                    <text x={x + each / 2} y={top - 4} text-anchor="middle" fill={toneColor(step.tone)}>
                      {SIGNS[step.tone]}{each >= 40 && ` ${shown(step.value)}`}
                    </text>
                  )}
                  {index % every === 0 && (
                    <text x={x + each / 2} y={foot + 14} text-anchor="middle">{cut(step.name, 14)}</text>
                  )}
                </g>
              );
            })}
            <line x1={LEFT} x2={width - RIGHT} y1={foot} y2={foot} class="axis" />
          </svg></div>
        )}
        <Tip spot={at === null ? null : { x: LEFT + (at + 0.5) * each - (scroller.current?.scrollLeft ?? 0), y: HEIGHT - 20, width: wide }}>
          {here && (
            <><b>{cut(here.name, 80)}: {here.value === null ? "" : `${shown(here.value)} ${chart.unit}, `}{here.tone}</b>
              {here.text && <><br />{cutEnd(here.text, 500)}</>}</>
          )}
        </Tip>
      </div>
      <FactTable title={chart.title} headings={["step", chart.unit, "verdict", "what happened"]}
        rows={() => steps.map((step) => [step.name, shown(step.value), step.tone, step.text])} />
    </figure>
  );
}
