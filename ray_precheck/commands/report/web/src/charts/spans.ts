// The pieces of a timeline by lane: which are seen, what time is idle, what of them is drawn. Pure.
export interface Spans {
  lane: ArrayLike<number>; begin: ArrayLike<number>; length: ArrayLike<number>; stage: ArrayLike<number>;
}

/** A lane: its spans by their begin, and for each the latest end of it and those before it. */
export interface Lane { spans: Uint32Array; latest: Float64Array; busy: number }

/** Sort the spans into lanes. `busy` counts time that several spans of a lane share once. */
export function lanesOf(all: Spans, count: number): Lane[] {
  const sizes = new Uint32Array(count);
  for (let i = 0; i < all.lane.length; i++) sizes[all.lane[i]!]!++;
  const lanes = Array.from(sizes, (size) => new Uint32Array(size));
  const filled = new Uint32Array(count);
  for (let i = 0; i < all.lane.length; i++) {
    const lane = all.lane[i]!;
    lanes[lane]![filled[lane]!++] = i;
  }
  return lanes.map((spans) => {
    if (!isSorted(spans, all.begin)) spans.sort((one, other) => all.begin[one]! - all.begin[other]!);
    const latest = new Float64Array(spans.length);
    let [busy, end] = [0, -Infinity];
    spans.forEach((span, place) => {
      const [from, to] = [all.begin[span]!, all.begin[span]! + all.length[span]!];
      if (to > end) {
        busy += to - Math.max(from, end);
        end = to;
      }
      latest[place] = end;
    });
    return { spans, latest, busy };
  });
}

function isSorted(spans: Uint32Array, begin: ArrayLike<number>): boolean {
  for (let i = 1; i < spans.length; i++) if (begin[spans[i]!]! < begin[spans[i - 1]!]!) return false;
  return true;
}

/** The end of the last span, 0 where there are none. */
export function endOf(lanes: Lane[]): number {
  return lanes.reduce((end, lane) => Math.max(end, lane.latest.at(-1) ?? 0), 0);
}

/** The share of the whole time, from 0 to `end`, in which nothing ran on a lane. */
export function idleShare(lane: Lane, end: number): number {
  return end > 0 ? Math.min(1, Math.max(0, 1 - lane.busy / end)) : 0;
}

/** The place of the first span of a lane that ends after a moment; the number of spans where none does. */
export function firstAfter(lane: Lane, moment: number): number {
  let [low, high] = [0, lane.latest.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.latest[middle]! > moment) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The place in its lane of the span at a moment, the one that began last; within `slack` of it where none is
 * there; -1 where there is none. */
export function spanAt(all: Spans, lane: Lane, moment: number, slack: number): number {
  let [best, distance] = [-1, Infinity];
  for (let place = firstAfter(lane, moment - slack); place < lane.spans.length; place++) {
    const span = lane.spans[place]!;
    const from = all.begin[span]!;
    if (from > moment + slack) break;
    const away = Math.max(0, from - moment, moment - from - all.length[span]!);
    if (away <= slack && away <= distance) [best, distance] = [place, away];
  }
  return best;
}

/**
 * What a lane shows of the time from `from` to `to` on `width` pixels: `draw(x, end, stage, share, place)`, in
 * pixels. Spans below a pixel are drawn together, a pixel at once, in the stage that has most of it; `share` is
 * how much of it they fill, and `place` is -1. So there are never more drawings than pixels and large spans.
 */
export function drawnSpans(
  all: Spans, lane: Lane, from: number, to: number, width: number,
  draw: (x: number, end: number, stage: number, share: number, place: number) => void,
): void {
  const scale = width / (to - from);
  let pixel = -1;
  const shares = new Map<number, number>();
  const flush = () => {
    if (pixel < 0) return;
    let [stage, most, sum] = [0, 0, 0];
    shares.forEach((share, each) => {
      sum += share;
      if (share > most) [stage, most] = [each, share];
    });
    draw(pixel, pixel + 1, stage, Math.min(1, sum), -1);
    pixel = -1;
    shares.clear();
  };
  for (let place = firstAfter(lane, from); place < lane.spans.length; place++) {
    const span = lane.spans[place]!;
    const begin = all.begin[span]!;
    if (begin >= to) break;
    const x = (begin - from) * scale;
    const long = all.length[span]! * scale;
    if (long >= 1) {
      flush();
      const end = Math.min(width, x + long);
      if (end > 0) draw(Math.max(0, x), end, all.stage[span]!, 1, place);
      continue;
    }
    if (x < 0) continue;
    if (Math.floor(x) !== pixel) {
      flush();
      pixel = Math.floor(x);
    }
    shares.set(all.stage[span]!, (shares.get(all.stage[span]!) ?? 0) + long);
  }
  flush();
}

/** The part of the time that is seen after zooming by `factor` around a moment; never less than a millionth. */
export function zoomed(
  [from, to]: [number, number], factor: number, around: number, end: number,
): [number, number] {
  const width = Math.min(end, Math.max(end * 1e-6, (to - from) * factor));
  const begin = around - ((around - from) / (to - from)) * width;
  return shifted([begin, begin + width], 0, end);
}

/** The part that is seen after moving by `by` seconds; it stays within the run. */
export function shifted([from, to]: [number, number], by: number, end: number): [number, number] {
  const width = Math.min(end, to - from);
  const begin = Math.min(end - width, Math.max(0, from + by));
  return [begin, begin + width];
}
