// A thin picture of the errors of all calls of a run, in their order; a click opens the flow there.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { shown } from "../format";
import { barOf, decadesOf, stripOf, type Flow } from "./flow";

const HEIGHT = 44;

export function FlowStrip({ flow, unit, at, open }: {
  flow: Flow; unit: string; at: number; open: (call: number) => void;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [isDark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  const decades = useMemo(() => decadesOf(flow.own), [flow]);
  const strip = useMemo(() => stripOf(flow, Math.max(1, width)), [flow, width]);
  useEffect(() => {
    const size = new ResizeObserver(() => setWidth(Math.floor(canvas.current?.clientWidth ?? 0)));
    size.observe(canvas.current!);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(scheme.matches);
    scheme.addEventListener("change", changed);
    return () => {
      size.disconnect();
      scheme.removeEventListener("change", changed);
    };
  }, []);
  useEffect(() => {
    const element = canvas.current!;
    const scale = devicePixelRatio || 1;
    element.width = width * scale;
    element.height = HEIGHT * scale;
    const paint = element.getContext("2d");
    if (!paint || width === 0) return;
    const style = getComputedStyle(element);
    paint.scale(scale, scale);
    for (let part = 0; part < width; part++) {
      const top = barOf(strip.largest[part]!, decades);
      const foot = barOf(strip.least[part]!, decades);
      paint.fillStyle = style.getPropertyValue(`--${strip.worst[part]}`);
      const high = Math.max(1.5, top * (HEIGHT - 4));
      // From the least to the largest; the line at the foot tells the verdict where all errors are zero.
      paint.fillRect(part, HEIGHT - high, 1, Math.max(1.5, (top - foot) * (HEIGHT - 4)));
      paint.fillRect(part, HEIGHT - 1.5, 1, 1.5);
    }
    paint.fillStyle = style.getPropertyValue("--ink");
    paint.fillRect(Math.round((at / Math.max(1, flow.count)) * width) - 1, 0, 2, HEIGHT);
  }, [strip, width, at, isDark]);
  let largest = 0;
  for (let part = 1; part < strip.largest.length; part++) {
    if (!(strip.largest[part]! <= strip.largest[largest]!)) largest = part;
  }
  return (
    <canvas
      ref={canvas} class="strip" role="img"
      aria-label={`Own errors of all ${flow.count.toLocaleString("en-US")} calls in the order of the run; the largest is `
        + `${shown(strip.largest[largest])} ${unit} at ${flow.count ? flow.names.at(strip.at[largest]!).slice(0, 200) : "no call"}`}
      onClick={(event) => {
        if (width && flow.count) open(strip.at[Math.min(width - 1, Math.max(0, Math.floor(event.offsetX)))]!);
      }}
    />
  );
}
