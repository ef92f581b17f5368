// The flow of a run: which calls stand around a call, and how large the errors are along the run. All of it is
// numbers, since a run has up to a million calls. Comes in: the arrays of a FlowGraph. Called by graph.tsx, strip.tsx.
import { numbers, strings, type Numbers, type Strings } from "../blobs";
import { TONES, type FlowGraph, type Tone } from "../types";

/** For call i, those that it is linked to: `to[begins[i]]` up to `to[begins[i + 1]]`. */
export interface Links { begins: Uint32Array; to: Uint32Array }

export interface Flow {
  /** `rows` are the rows of tables that the calls open, "" for none. */
  names: Strings; tones: Numbers; own: Numbers; inherited: Numbers; texts: Strings; rows: Strings;
  before: Links; after: Links; partners: Links; count: number;
}

export async function readFlow(chart: FlowGraph): Promise<Flow> {
  const [names, tones, own, inherited, texts, edges, pairs, rows] = await Promise.all([
    strings(chart.names), numbers(chart.tones), numbers(chart.own), numbers(chart.inherited), strings(chart.texts),
    numbers(chart.edges), numbers(chart.pairs), chart.links && strings(chart.links),
  ]);
  const count = names.length;
  const both = new Uint32Array(2 * pairs.length);
  for (let i = 0; i < pairs.length; i += 2) both.set([pairs[i]!, pairs[i + 1]!, pairs[i + 1]!, pairs[i]!], 2 * i);
  return {
    names, tones, own, inherited, texts, count, rows: rows ?? names,
    before: linksOf(edges, count, true), after: linksOf(edges, count, false), partners: linksOf(both, count, false),
  };
}

/** The links of each call: from pairs (from, to) one after the other; `isBack`: from `to` to `from`. */
export function linksOf(edges: ArrayLike<number>, count: number, isBack: boolean): Links {
  const [from, other] = isBack ? [1, 0] : [0, 1];
  const begins = new Uint32Array(count + 1);
  for (let i = from; i < edges.length; i += 2) begins[edges[i]! + 1]!++;
  for (let call = 0; call < count; call++) begins[call + 1]! += begins[call]!;
  const places = begins.slice();
  const to = new Uint32Array(edges.length >> 1);
  for (let i = 0; i < edges.length; i += 2) to[places[edges[i + from]!]!++] = edges[i + other]!;
  return { begins, to };
}

export function linked(links: Links, call: number): Uint32Array {
  return links.to.subarray(links.begins[call], links.begins[call + 1]);
}

/** How much a verdict asks to be seen. */
const WEIGHT: Record<Tone, number> = { error: 5, unmatched: 4, warning: 3, skip: 2, plain: 1, pass: 0 };

/** How many calls before and after one without links are shown. */
const BESIDE = 2;

export function toneOf(flow: Flow, call: number): Tone {
  return TONES[flow.tones[call]!] ?? "plain";
}

/** Calls that reach `call` and that it reaches in up to `hops` steps, and those that stand for one of them; at most
 * `most`, the nearest and worst first. */
export function around(flow: Flow, call: number, hops: number, most: number): Set<number> {
  const found = new Set([call, ...linked(flow.partners, call)]);
  let layers: [Links, number[]][] = [[flow.before, [...found]], [flow.after, [...found]]];
  for (let hop = 0; hop < hops && found.size < most; hop++) {
    const next = layers.map(([links, layer]): [Links, number[]] => [
      links, [...new Set(layer.flatMap((each) => [...linked(links, each)]))].filter((each) => !found.has(each)),
    ]);
    const candidates = [...new Set(next.flatMap(([, layer]) => layer))];
    candidates.sort((a, b) => WEIGHT[toneOf(flow, b)] - WEIGHT[toneOf(flow, a)] || Math.abs(a - call) - Math.abs(b - call));
    for (const each of candidates.slice(0, most - found.size)) {
      found.add(each);
      for (const partner of linked(flow.partners, each)) if (found.size < most) found.add(partner);
    }
    layers = next.map(([links, layer]) => [links, layer.filter((each) => found.has(each))]);
  }
  // Nothing is known to flow to or from it: what ran before and after it says at least where it stands.
  if (found.size === 1) {
    for (let at = Math.max(0, call - BESIDE); at <= Math.min(flow.count - 1, call + BESIDE); at++) found.add(at);
  }
  return found;
}

/** How many calls that are linked to `call` are not shown. */
export function hidden(flow: Flow, call: number, shown: ReadonlySet<number>): number {
  let count = 0;
  for (const links of [flow.before, flow.after]) for (const each of linked(links, call)) count += +!shown.has(each);
  return count;
}

/** The worst, then nearest call that an arrow key leads to from `call` and that is not shown yet; -1 for none. */
export function beyondBorder(flow: Flow, call: number, shown: ReadonlySet<number>, key: string): number {
  const links = { ArrowUp: flow.before, ArrowDown: flow.after }[key];
  const ends = links ? [...linked(links, call)].filter((each) => !shown.has(each)) : [];
  ends.sort((a, b) => WEIGHT[toneOf(flow, b)] - WEIGHT[toneOf(flow, a)] || Math.abs(a - call) - Math.abs(b - call));
  return ends[0] ?? -1;
}

/** The nearest call in error before (`step` -1) or behind (1) `call`, -1 for none. */
export function nextInError(flow: Flow, call: number, step: 1 | -1): number {
  const error = TONES.indexOf("error");
  for (let at = call + step; at >= 0 && at < flow.count; at += step) if (flow.tones[at] === error) return at;
  return -1;
}

/** For each of `width` parts of the run: the least and largest own error (NaN where none is known), the worst
 * verdict, and the call that has the largest. */
export interface Strip { least: Float64Array; largest: Float64Array; worst: Tone[]; at: Uint32Array }

export function stripOf(flow: Flow, width: number): Strip {
  const least = new Float64Array(width).fill(NaN);
  const largest = new Float64Array(width).fill(NaN);
  const worst: Tone[] = Array.from({ length: width }, () => "pass");
  const at = new Uint32Array(width);
  for (let part = 0; part < width; part++) {
    const begin = Math.floor((part * flow.count) / width);
    const end = Math.min(flow.count, Math.max(begin + 1, Math.floor(((part + 1) * flow.count) / width)));
    at[part] = begin;
    let weight = -1;
    for (let call = begin; call < end; call++) {
      const tone = toneOf(flow, call);
      const own = flow.own[call]!;
      if (!(own >= least[part]!)) least[part] = Number.isNaN(own) ? least[part]! : own;
      const isLarger = own > largest[part]! || (Number.isNaN(largest[part]!) && !Number.isNaN(own));
      if (isLarger) largest[part] = own;
      if (WEIGHT[tone] > weight || (WEIGHT[tone] === weight && isLarger)) at[part] = call;
      if (WEIGHT[tone] > weight) {
        weight = WEIGHT[tone];
        worst[part] = tone;
      }
    }
  }
  return { least, largest, worst, at };
}

/** The powers of ten between which the errors above zero lie, at least one apart and at most 12. */
export function decadesOf(...arrays: Numbers[]): [number, number] {
  let least = Infinity;
  let largest = -Infinity;
  for (const values of arrays) {
    for (let i = 0; i < values.length; i++) {
      const value = values[i]!;
      if (value > 0 && value < Infinity) {
        if (value < least) least = value;
        if (value > largest) largest = value;
      }
    }
  }
  if (least > largest) return [-1, 0];
  const high = Math.ceil(Math.log10(largest));
  return [Math.max(high - 12, Math.min(high - 1, Math.floor(Math.log10(least)))), high];
}

/** How long the bar of an error is, from 0 to 1, on a logarithmic scale; infinity is 1, zero and NaN are 0. */
export function barOf(value: number, [low, high]: [number, number]): number {
  if (!(value > 0)) return 0;
  return Math.min(1, Math.max(0.02, (Math.log10(value) - low) / (high - low)));
}
