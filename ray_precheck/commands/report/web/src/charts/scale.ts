// Where numbers stand in a picture, and in which color. Pure: numbers in, numbers and words out.
import type { Num } from "../types";

/** Numbers from here on stand for infinity, since JSON has none of it. */
export const INFINITE = 1e308;

export type Scheme = "light" | "dark" | "print";
type Color = [number, number, number];

/** Round numbers (1, 2, 5 times a power of ten) from `low` to `high`, about `most` of them. */
export function linearTicks(low: number, high: number, most: number): number[] {
  if (!(high > low) || most < 1) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999_999)!;
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Powers of ten from `low` to `high`, at most `most` of them, equally far apart. */
export function logTicks(low: number, high: number, most: number): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const ticks = [];
  for (let power = Math.ceil(first / step) * step; power <= last; power += step) ticks.push(Number(`1e${power}`));
  return ticks;
}

/** Of labels that are `apart` pixels from each other every n-th fits, if one needs `need` pixels. Returns n. */
export function everyNth(apart: number, need: number): number {
  return apart > 0 ? Math.max(1, Math.ceil(need / apart - 1e-9)) : Infinity;
}

/** A text cut to `most` signs at its beginning: the end of a name says more than its beginning. */
export function cut(text: string, most: number): string {
  return text.length <= most ? text : `…${text.slice(text.length - Math.max(0, most - 1))}`;
}

/** A text cut to `most` signs at its end. */
export function cutEnd(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, Math.max(0, most - 1))}…`;
}

/**
 * Where a value stands between the best and the worst of a picture: from -1 to 0 within the limit, above 0 to 1
 * beyond it. `below` and `beyond` are the powers of ten on each side. With a limit of 0 everything above it is
 * beyond; without a limit (`above` null) all places are from 0 to 1 and say nothing of an error.
 */
export interface HeatScale {
  above: Num;
  /** the value at place -1, at 0 and at 1 */
  low: number;
  middle: number;
  high: number;
  place(value: number): number;
}

const MOST_DECADES = 6;
const decades = (value: number): number => Math.min(MOST_DECADES, Math.max(1, Math.ceil(value - 1e-9)));

export function heatScale(values: Iterable<Num>, above: Num): HeatScale {
  let least = Infinity;
  let most = 0;
  for (const value of values) {
    if (value === null || !(value > 0) || value >= INFINITE) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  if (above === null || above <= 0) {
    const middle = most ? 10 ** Math.floor(Math.log10(least) + 1e-9) : 1;
    const high = middle * 10 ** decades(most ? Math.log10(most / middle) : 1);
    const width = Math.log10(high / middle);
    // A place of 0 is within the limit; what is just beyond it has the least place that is not.
    const floor = above === null ? 0 : Number.EPSILON;
    const place = (value: number) =>
      value <= 0 ? 0 : Math.min(1, Math.max(floor, Math.log10(value / middle) / width));
    return { above, low: 0, middle, high, place };
  }
  const below = decades(most && least < above ? Math.log10(above / least) : 1);
  const beyond = decades(most > above ? Math.log10(most / above) : 1);
  const place = (value: number) => {
    if (value <= 0) return -1;
    const far = Math.log10(value / above);
    return far <= 0 ? Math.max(-1, far / below) : Math.min(1, Math.max(Number.EPSILON, far / beyond));
  };
  return { above, low: above / 10 ** below, middle: above, high: above * 10 ** beyond, place };
}

// Blue and orange, which people with any color vision tell apart; farther from the limit is farther from the
// ground in brightness, too. Beyond the limit begins with a color that nobody takes for the ground.
const WITHIN: Record<"light" | "dark", Color[]> = {
  light: [[238, 243, 248], [160, 199, 230], [62, 134, 189]],
  dark: [[34, 42, 52], [30, 74, 112], [44, 122, 184]],
};
const BEYOND: Record<"light" | "dark", Color[]> = {
  light: [[253, 208, 140], [240, 132, 40], [186, 62, 10], [110, 22, 4]],
  dark: [[138, 80, 18], [198, 102, 24], [250, 142, 60], [255, 206, 160]],
};
const UNKNOWN: Record<"light" | "dark", Color[]> = {
  light: [[240, 238, 244], [176, 158, 204], [84, 52, 128]],
  dark: [[38, 34, 46], [110, 84, 154], [206, 184, 240]],
};

/** The color at a place of `heatScale`. */
export function heatColor(place: number, hasLimit: boolean, scheme: Scheme): Color {
  const mode = scheme === "dark" ? "dark" : "light";
  if (!hasLimit) return mixed(UNKNOWN[mode], Math.abs(place));
  return place > 0 ? mixed(BEYOND[mode], place) : mixed(WITHIN[mode], -place);
}

function mixed(colors: Color[], share: number): Color {
  const at = Math.min(1, Math.max(0, share)) * (colors.length - 1);
  const first = Math.min(colors.length - 2, Math.floor(at));
  const [from, to] = [colors[first]!, colors[first + 1]!];
  return [0, 1, 2].map((each) => Math.round(from[each]! + (to[each]! - from[each]!) * (at - first))) as Color;
}

export const css = (color: Color): string => `rgb(${color.join(" ")})`;

/** Black or white: what can be read on a color. */
export function inkOn([red, green, blue]: Color): string {
  return red * 0.299 + green * 0.587 + blue * 0.114 > 140 ? "#111" : "#fff";
}

/**
 * Where edges of bins stand from 0 to 1. On a logarithmic scale bins are equally wide; where an end is open
 * (null, infinite, or 0 on a logarithmic scale) its bin is as wide as the mean of the others.
 */
export function edgePlaces(edges: Num[], isLog: boolean): number[] {
  const count = edges.length - 1;
  if (isLog) return edges.map((_, index) => index / count);
  const isOpen = (edge: Num | undefined) => edge === null || edge === undefined || !Number.isFinite(edge);
  const first = isOpen(edges[0]) ? 1 : 0;
  const last = isOpen(edges[count]) ? count - 1 : count;
  const [low, high] = [edges[first] ?? 0, edges[last] ?? 1];
  const mean = (high - low) / Math.max(1, last - first) || 1;
  const from = low - first * mean;
  const to = high + (count - last) * mean;
  return edges.map((edge, index) =>
    index < first ? 0 : index > last ? 1 : ((edge ?? low) - from) / (to - from));
}

/** Where a value stands among the edges, from 0 to 1; null where it is beyond all of them. */
export function placeOf(value: number, edges: Num[], places: number[], isLog: boolean): number | null {
  for (let bin = 0; bin + 1 < edges.length; bin++) {
    const low = edges[bin] ?? -Infinity;
    const high = edges[bin + 1] ?? Infinity;
    if (value < low || value > high) continue;
    const [begin, end] = [places[bin]!, places[bin + 1]!];
    const share = isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return begin + (end - begin) * (Number.isFinite(share) ? Math.min(1, Math.max(0, share)) : 0.5);
  }
  return null;
}

/** Where a count stands from 0 to 1 on a logarithmic axis on which one piece is seen and none is 0. */
export function countPlace(count: number, most: number): number {
  return count <= 0 ? 0 : (Math.log10(count) + 0.3) / (Math.log10(Math.max(1, most)) + 0.3);
}
