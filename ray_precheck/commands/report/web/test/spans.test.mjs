import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "./bundled.mjs";

const { drawnSpans, endOf, firstAfter, idleShare, lanesOf, shifted, spanAt, zoomed } = await bundled("charts/spans.ts");

/** Spans of [lane, begin, length, stage]. */
function spansOf(...rows) {
  const column = (index) => rows.map((row) => row[index] ?? 0);
  return { lane: column(0), begin: column(1), length: column(2), stage: column(3) };
}

function drawn(spans, from, to, width) {
  const found = [];
  drawnSpans(spans, lanesOf(spans, 1)[0], from, to, width, (...each) => found.push(each));
  return found;
}

test("time that spans share is busy once, and the rest is idle", () => {
  const spans = spansOf([0, 0, 4], [1, 0, 10], [0, 1, 2], [0, 3, 3], [0, 9, 1]);
  const lanes = lanesOf(spans, 3);
  assert.deepEqual(lanes.map((lane) => lane.busy), [7, 10, 0]);
  assert.equal(endOf(lanes), 10);
  assert.ok(Math.abs(idleShare(lanes[0], 10) - 0.3) < 1e-12);
  assert.deepEqual([idleShare(lanes[1], 10), idleShare(lanes[2], 10)], [0, 1]);
  assert.equal(idleShare(lanes[2], 0), 0);
});

test("spans out of order are sorted", () => {
  const [lane] = lanesOf(spansOf([0, 5, 1], [0, 1, 1], [0, 3, 1]), 1);
  assert.deepEqual([...lane.spans], [1, 2, 0]);
  assert.deepEqual([...lane.latest], [2, 4, 6]);
});

test("a long span is seen although later ones have ended", () => {
  const spans = spansOf([0, 0, 100], [0, 1, 1], [0, 3, 1], [0, 50, 1]);
  const [lane] = lanesOf(spans, 1);
  assert.equal(firstAfter(lane, 20), 0);
  assert.equal(firstAfter(lane, 100), 4);
  assert.deepEqual(drawn(spans, 20, 40, 100), [[0, 100, 0, 1, 0]]);
});

test("the span under the pointer is the one that began last, or the nearest within the slack", () => {
  const spans = spansOf([0, 0, 10], [0, 4, 2], [0, 20, 1]);
  const [lane] = lanesOf(spans, 1);
  assert.equal(spanAt(spans, lane, 5, 0), 1);
  assert.equal(spanAt(spans, lane, 8, 0), 0);
  assert.equal(spanAt(spans, lane, 15, 0), -1);
  assert.equal(spanAt(spans, lane, 19.5, 1), 2);
  assert.equal(spanAt(spans, lane, 12, Infinity), 0);
});

test("spans below a pixel become one drawing a pixel, in the stage that has most of it", () => {
  const rows = Array.from({ length: 100_000 }, (_, index) => [0, index / 1000, 0.0005, index % 10 === 9 ? 1 : 2]);
  const found = drawn(spansOf(...rows), 0, 100, 500);
  assert.equal(found.length, 500);
  assert.ok(found.every(([x, end, stage, share, place]) =>
    end === x + 1 && stage === 2 && Math.abs(share - 0.5) < 0.01 && place === -1));
});

test("spans of a pixel and more are drawn alone, cut at the ends of the picture", () => {
  const found = drawn(spansOf([0, 0, 3, 1], [0, 4, 2, 2], [0, 9, 5, 3], [0, 20, 1, 4]), 2, 10, 80);
  assert.deepEqual(found, [[0, 10, 1, 1, 0], [20, 40, 2, 1, 1], [70, 80, 3, 1, 2]]);
});

test("zooming keeps the moment under the pointer, and both ends within the run", () => {
  assert.deepEqual(zoomed([0, 100], 0.5, 50, 100), [25, 75]);
  assert.deepEqual(zoomed([0, 100], 0.5, 0, 100), [0, 50]);
  assert.deepEqual(zoomed([50, 100], 4, 90, 100), [0, 100]);
  const [from, to] = zoomed([10, 10.001], 1e-9, 10, 100);
  assert.ok(Math.abs(to - from - 1e-4) < 1e-12);
});

test("moving ends at the ends of the run", () => {
  assert.deepEqual(shifted([10, 30], 5, 100), [15, 35]);
  assert.deepEqual(shifted([10, 30], -50, 100), [0, 20]);
  assert.deepEqual(shifted([10, 30], 500, 100), [80, 100]);
});
