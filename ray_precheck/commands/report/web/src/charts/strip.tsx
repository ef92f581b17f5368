// A thin picture of the errors of all calls of a run, in their order; a click opens the flow there.
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Numbers } from "../blobs";
import { powerOfTen, shown, SIGNS } from "../format";
import { TONES } from "../types";
import { prepared, useScheme, useWidth } from "./canvas";
import { barOf, decadesOf, stripOf, type Flow } from "./flow";

const HEIGHT = 44;
/** Under each call a line of its verdict's color, which is seen where its error is zero, too. */
const LINE = 2;

export function FlowStrip({ flow, unit, at, open }: {
  flow: Flow; unit: string; at: number; open: (call: number) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(place);
  const scheme = useScheme();
  const decades = useMemo(() => decadesOf(flow.own), [flow]);
  const strip = useMemo(() => stripOf(flow, Math.max(1, width)), [flow, width]);
  useEffect(() => {
    if (width === 0) return;
    const paint = prepared(canvas.current!, width, HEIGHT);
    const style = getComputedStyle(canvas.current!);
    const most = HEIGHT - LINE - 2;
    for (let part = 0; part < width; part++) {
      const top = barOf(strip.largest[part]!, decades) * most;
      const foot = barOf(strip.least[part]!, decades) * most;
      paint.fillStyle = style.getPropertyValue(`--${strip.worst[part]}`);
      if (top > 0) paint.fillRect(part, HEIGHT - LINE - top, 1, Math.max(1.5, top - foot));
      paint.fillRect(part, HEIGHT - LINE, 1, LINE);
    }
    paint.fillStyle = style.getPropertyValue("--ink");
    paint.fillRect(Math.round((at / Math.max(1, flow.count)) * width) - 1, 0, 2, HEIGHT);
  }, [strip, width, at, scheme]);
  const largest = useMemo(() => largestOf(flow.own), [flow]);
  const seen = useMemo(() => TONES.filter((_, index) => flow.tones.includes(index)), [flow]);
  const [low, high] = decades.map(powerOfTen);
  return (
    <>
    <div ref={place} class="strip">
      <canvas
        ref={canvas} role="img"
        aria-label={`Own errors of all ${flow.count.toLocaleString("en-US")} calls in the order of the run; the largest is `
          + `${shown(flow.own[largest])} ${unit} at ${flow.names.at(largest).slice(0, 200)}`}
        onClick={(event) => open(strip.at[Math.min(width - 1, Math.max(0, Math.floor(event.offsetX)))]!)}
      />
    </div>
    <p class="tools strip-legend">
      <span>strip: own error, {low} (foot) to {high} (top), logarithmic; upright line: where the graph stands</span>
      {seen.map((tone) => <span class={`swatch ${tone}`}>{SIGNS[tone]} {tone}</span>)}
    </p>
    </>
  );
}

function largestOf(values: Numbers): number {
  let best = 0;
  for (let at = 1; at < values.length; at++) if (values[at]! > values[best]! || Number.isNaN(values[best]!)) best = at;
  return best;
}
