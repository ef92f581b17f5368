import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "./bundled.mjs";

const { Strings } = await bundled("blobs.ts");
const { around, barOf, decadesOf, hidden, linked, linksOf, nextInError, stripOf } = await bundled("charts/flow.ts");
const { beside, drawingOf } = await bundled("charts/graph_layout.ts");

/** A flow of `count` calls; `errors` are in error. */
function flow(count, edges, { errors = [], pairs = [], own = [] } = {}) {
  const tones = new Uint8Array(count);
  for (const call of errors) tones[call] = 2;
  const flat = pairs.flatMap(([a, b]) => [a, b, b, a]);
  return {
    count, tones, own: Float32Array.from({ length: count }, (_, call) => own[call] ?? NaN), inherited: new Float32Array(count),
    names: new Strings(new Uint8Array(0), new Uint32Array(count)), texts: new Strings(new Uint8Array(0), new Uint32Array(0)),
    before: linksOf(edges.flat(), count, true), after: linksOf(edges.flat(), count, false),
    partners: linksOf(flat, count, false),
  };
}
const chain = (count) => Array.from({ length: count - 1 }, (_, call) => [call, call + 1]);
const sorted = (calls) => [...calls].sort((a, b) => a - b);

test("links go from a call to those behind and before it", () => {
  const edges = [0, 2, 1, 2, 2, 3, 0, 3];
  assert.deepEqual([...linked(linksOf(edges, 4, false), 0)], [2, 3]);
  assert.deepEqual([...linked(linksOf(edges, 4, true), 3)], [2, 0]);
  assert.deepEqual([...linked(linksOf(edges, 4, true), 0)], []);
});

test("a graph opens two steps up and down, and not to what its inputs have besides", () => {
  assert.deepEqual(sorted(around(flow(9, chain(9)), 4, 2, 60)), [2, 3, 4, 5, 6]);
  const fan = flow(4, [[0, 1], [0, 2], [1, 3]]);
  assert.deepEqual(sorted(around(fan, 1, 2, 60)), [0, 1, 3]);
});

test("of too many calls those in error are opened first, then the nearest", () => {
  const wide = flow(1000, Array.from({ length: 999 }, (_, call) => [0, call + 1]), { errors: [900] });
  const found = around(wide, 0, 2, 10);
  assert.equal(found.size, 10);
  assert.ok(found.has(900));
  assert.ok(found.has(1) && !found.has(500));
  assert.equal(hidden(wide, 0, found), 990);
});

test("calls that stand for each other are opened together", () => {
  assert.ok(around(flow(20, chain(20), { pairs: [[5, 15]] }), 5, 1, 60).has(15));
  assert.ok(around(flow(20, chain(20), { pairs: [[5, 15]] }), 4, 1, 60).has(15));
  assert.ok(around(flow(20, chain(20), { pairs: [[5, 15]] }), 15, 1, 60).has(5));
});

test("beside a call without links stand those before and after it", () => {
  assert.deepEqual(sorted(around(flow(9, [[0, 1]]), 5, 2, 60)), [3, 4, 5, 6, 7]);
  assert.deepEqual(sorted(around(flow(3, []), 0, 2, 60)), [0, 1, 2]);
});

test("a circle ends", () => {
  assert.deepEqual(sorted(around(flow(3, [[0, 1], [1, 2], [2, 0]]), 0, 9, 60)), [0, 1, 2]);
});

test("the next call in error is found both ways", () => {
  const one = flow(10, chain(10), { errors: [2, 7] });
  assert.deepEqual([nextInError(one, 4, 1), nextInError(one, 4, -1), nextInError(one, 7, 1), nextInError(one, -1, 1)], [7, 2, -1, 2]);
});

test("the strip has the least and largest of each part, and opens its worst call", () => {
  const strip = stripOf(flow(8, [], { own: [1, 5, NaN, 2, NaN, NaN, 3, 9], errors: [6] }), 4);
  assert.deepEqual([...strip.least], [1, 2, NaN, 3]);
  assert.deepEqual([...strip.largest], [5, 2, NaN, 9]);
  assert.deepEqual([...strip.at], [1, 3, 4, 6]);
  assert.deepEqual(strip.worst, ["pass", "pass", "pass", "error"]);
});

test("a strip wider than the run has each call once or more", () => {
  assert.deepEqual([...stripOf(flow(2, [], { own: [1, 2] }), 4).largest], [1, 1, 2, 2]);
});

test("bars are as long as the power of ten between the least and the largest", () => {
  assert.deepEqual(decadesOf([NaN, 0, 1e-5, 3, Infinity]), [-5, 1]);
  assert.deepEqual(decadesOf([1e-30, 1]), [-12, 0]);
  assert.deepEqual(decadesOf([]), [-1, 0]);
  assert.deepEqual([barOf(0, [-4, 0]), barOf(NaN, [-4, 0]), barOf(1e-2, [-4, 0]), barOf(Infinity, [-4, 0])], [0, 0, 0.5, 1]);
});

test("calls are laid out in layers, and arrows walk along the edges", () => {
  const one = flow(5, [[0, 2], [1, 2], [2, 3], [2, 4]], { pairs: [[0, 4]] });
  const drawing = drawingOf(one, new Set([0, 1, 2, 3, 4]));
  const y = (call) => drawing.nodes.find((node) => node.call === call).y;
  assert.ok(y(0) < y(2) && y(2) < y(3) && y(0) === y(1));
  assert.equal(drawing.lines.length, 4);
  assert.deepEqual(drawing.pairs.map(({ from, to }) => [from, to]), [[0, 4]]);
  assert.ok([0, 1].includes(beside(one, drawing, 2, "ArrowUp")));
  assert.ok([3, 4].includes(beside(one, drawing, 2, "ArrowDown")));
  assert.equal(beside(one, drawing, 0, "ArrowUp"), -1);
  const [left, right] = drawing.nodes.filter((node) => [0, 1].includes(node.call)).sort((a, b) => a.x - b.x);
  assert.equal(beside(one, drawing, left.call, "ArrowRight"), right.call);
  assert.equal(beside(one, drawing, left.call, "ArrowLeft"), -1);
});
