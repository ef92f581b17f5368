// What pictures share: their size, the colors of the page, drawing on a canvas, and a tip beside the pointer.
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Tone } from "../types";
import type { Scheme } from "./scale";
import { cut } from "./scale";

export interface Palette { ground: string; ink: string; quiet: string; line: string; soft: string; link: string }

// Paper is white, whatever the screen is; `beforeprint` comes before the page has its colors for it.
const PAPER: Palette = {
  ground: "#fff", ink: "#1a1a1a", quiet: "#595959", line: "#d0d0d0", soft: "#f4f4f2", link: "#0b57a0",
};
const NAMES = Object.keys(PAPER) as (keyof Palette)[];
export const FONT = "12px system-ui, sans-serif";

/** The color of a tone, for elements of SVG. */
export const toneColor = (tone: Tone): string => `var(--${tone})`;

export function palette(scheme: Scheme): Palette {
  if (scheme === "print") return PAPER;
  const style = getComputedStyle(document.documentElement);
  const found = NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim() || PAPER[name]]);
  return Object.fromEntries(found) as unknown as Palette;
}

// After Okabe and Ito; orange comes last, since elsewhere it says error.
const CATEGORIES = {
  light: ["#0072b2", "#008a64", "#a8528a", "#8a6d00", "#3a98d0", "#6b6b6b", "#c04f00"],
  dark: ["#6db9ee", "#3fcf9f", "#e59fcb", "#e6c229", "#a9dcff", "#bdbdbd", "#ff8f5c"],
};

/** The color of the n-th of things that have no order. */
export function category(index: number, scheme: Scheme): string {
  const colors = CATEGORIES[scheme === "dark" ? "dark" : "light"];
  return colors[index % colors.length]!;
}

/** Whether the page is light, dark or being printed; a change draws again. */
export function useScheme(): Scheme {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = (): Scheme => (dark.matches ? "dark" : "light");
  const [scheme, setScheme] = useState<Scheme>(now);
  useEffect(() => {
    const changed = () => setScheme(now());
    const printed = () => setScheme("print");
    dark.addEventListener("change", changed);
    addEventListener("beforeprint", printed);
    addEventListener("afterprint", changed);
    return () => {
      dark.removeEventListener("change", changed);
      removeEventListener("beforeprint", printed);
      removeEventListener("afterprint", changed);
    };
  }, []);
  return scheme;
}

/** The width of an element in CSS pixels, 0 before it is laid out (in closed details). */
export function useWidth(place: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = place.current!;
    const measured = () => setWidth(Math.floor(element.clientWidth));
    measured();
    const observer = new ResizeObserver(measured);
    observer.observe(element);
    // Details that are opened to be printed are laid out now, before an observer hears of it.
    addEventListener("beforeprint", measured);
    return () => {
      observer.disconnect();
      removeEventListener("beforeprint", measured);
    };
  }, []);
  return width;
}

/** Give a canvas its size in pixels of the device, and return its context in CSS pixels, cleared. */
export function prepared(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return context;
}

let measuring: CanvasRenderingContext2D | null = null;

/** The width of a text in CSS pixels, in the font of pictures. */
export function textWidth(text: string): number {
  measuring ??= document.createElement("canvas").getContext("2d");
  if (!measuring) return text.length * 7;
  measuring.font = FONT;
  return measuring.measureText(text).width;
}

/** A text of at most `most` signs that is cut, at its beginning if `cutter` does not say otherwise, until it
 * fits. */
export function fitting(text: string, wide: number, most: number, cutter = cut): string {
  let signs = Math.min(text.length, most);
  while (signs > 3 && textWidth(cutter(text, signs)) > wide) signs--;
  return cutter(text, signs);
}

/** Hatching: there is nothing here. */
export function hatching(context: CanvasRenderingContext2D, colors: Palette): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = tile.getContext("2d")!;
  lines.strokeStyle = colors.line;
  lines.beginPath();
  for (const shift of [-6, 0, 6]) {
    lines.moveTo(shift - 1, 7);
    lines.lineTo(shift + 7, -1);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat") ?? colors.soft;
}

export interface Spot { x: number; y: number; width: number }

/** What is under the pointer or the cursor, told beside it and to screen readers. Nothing moves for it. */
export function Tip({ spot, children }: { spot: Spot | null; children: ComponentChildren }) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const style = place.current!.style;
    if (!spot) {
      style.left = style.top = "0";
      style.right = "auto";
      return;
    }
    const isRight = spot.x > spot.width / 2;
    style.left = isRight ? "auto" : `${spot.x + 14}px`;
    style.right = isRight ? `${spot.width - spot.x + 14}px` : "auto";
    style.top = `${spot.y + 12}px`;
    const box = place.current!.getBoundingClientRect();
    if (box.bottom > innerHeight) style.top = `${spot.y - box.height - 26}px`;
  }, [spot]);
  return <div ref={place} class="tip" role="status" aria-live="polite">{spot && children}</div>;
}
