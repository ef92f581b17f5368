import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "./bundled.mjs";

const { measured, matrixLayout, worstCell } = await bundled("charts/matrix.tsx");
const { blockRange, rangeWords } = await bundled("charts/blocks.tsx");
const { beyondLimit, binWords, edgeTicks, shownShort, trimmed } = await bundled("charts/histogram.tsx");
const { aligned, extent } = await bundled("charts/lines.tsx");
const { tickText } = await bundled("charts/timeline.tsx");
const { childrenOf, countWords, openRows, ownName, worstPath } = await bundled("charts/tree.tsx");
const { powerOfTen, seconds, shown } = await bundled("format.ts");
const { decadesBeyond } = await bundled("cards.tsx");

const most = { cellWidth: 96, cellHeight: 24, height: 620 };

test("cells of a small matrix are large, and its labels lie flat", () => {
  const found = matrixLayout(1000, 10, 4, 120, 50, most);
  assert.deepEqual([found.cellWidth, found.cellHeight, found.isSlanted, found.left], [96, 24, false, 128]);
  assert.equal(found.width, 128 + 4 * 96 + 8);
});

test("500 x 500 cells fit into the page, with labels at an angle", () => {
  const found = matrixLayout(1168, 500, 500, 150, 90, most);
  assert.ok(found.isSlanted);
  assert.ok(found.width <= 1168, `${found.width}`);
  assert.ok(found.cellWidth >= 1.5 && found.cellHeight >= 1.5 && found.height < 900);
});

test("where cells would be too small to be seen the picture is wider than the page", () => {
  const found = matrixLayout(300, 10, 500, 150, 90, most);
  assert.equal(found.cellWidth, 1.5);
  assert.ok(found.left <= 128 && found.width > 750);
});

test("the worst cell is the largest; what is not there counts for nothing", () => {
  assert.deepEqual(worstCell([[null, 0.5], [3, 1]], 1), { row: 1, column: 0, value: 3, over: 1, count: 3 });
  assert.deepEqual(worstCell([[null]], 1), { row: 0, column: 0, value: null, over: 0, count: 0 });
  assert.equal(measured(1.8e308, "times"), "infinite times");
  assert.equal(measured(1e308, "times"), "infinite times");
  assert.equal(measured(null, "times"), "nothing here");
});

test("blocks divide a dimension evenly and leave nothing out", () => {
  assert.deepEqual([0, 1, 2].map((block) => blockRange(block, 3, 10)), [[0, 2], [3, 5], [6, 9]]);
  assert.deepEqual(blockRange(15, 16, 2048), [1920, 2047]);
  assert.equal(rangeWords("row", [1920, 2047]), "rows 1,920-2,047");
  assert.equal(rangeWords("column", [5, 5]), "column 5");
});

const histogram = { edges: [0, 0.01, 0.1, 1, null], counts: [5, 4, 3, 2], limit: 0.1, is_log: true };

test("elements beyond the limit are those of bins wholly beyond it", () => {
  assert.deepEqual(beyondLimit(histogram), { beyond: 5, around: 0, all: 14 });
  assert.deepEqual(beyondLimit({ ...histogram, limit: 0.5 }), { beyond: 2, around: 3, all: 14 });
  assert.deepEqual(beyondLimit({ ...histogram, limit: null }), { beyond: 0, around: 0, all: 14 });
});

test("empty bins at the ends go, not the one with the limit", () => {
  const edges = [1, 2, 3, 4, 5, 6, 7];
  const found = trimmed({ edges, counts: [0, 0, 7, 0, 0, 0], limit: 5.5, is_log: false });
  assert.deepEqual([found.counts, found.edges], [[7, 0, 0], [3, 4, 5, 6]]);
  assert.deepEqual(trimmed({ edges: [1, 2], counts: [0], limit: null }).counts, [0]);
});

test("bins are told with their open ends", () => {
  assert.equal(binWords(null, 0.01), "below 0.01");
  assert.equal(binWords(1, null), "1 and above, or not finite");
  assert.equal(binWords(0.01, 0.1), "0.01 to 0.1");
});

test("a logarithmic axis has powers of ten at its ticks", () => {
  const edges = [0, ...Array.from({ length: 9 }, (_, index) => 10 ** (-3.5 + index / 2)), null];
  const numbers = (every) => edgeTicks(edges, true, every).map((index) => shownShort(edges[index]));
  assert.deepEqual(numbers(1), ["0.001", "0.01", "0.1", "1"]);
  assert.deepEqual(numbers(4), ["0.001", "0.1"]);
  assert.deepEqual(edgeTicks([2, 3, 5], true, 1), [0, 1, 2]);
});

test("lines have one axis; a gap is null, a step that a line does not have undefined", () => {
  const found = aligned([{ name: "a", x: [3, 1, 2], y: [30, 10, null] }, { name: "b", x: [2, 4], y: [0, 5] }], false);
  assert.deepEqual(found, [[1, 2, 3, 4], [10, null, 30, undefined], [undefined, 0, undefined, 5]]);
});

test("what a logarithmic axis cannot show is left out and counted", () => {
  const series = [{ name: "a", x: [1, 2, 3], y: [0, -1, 8] }];
  assert.deepEqual(aligned(series, true)[1], [null, null, 8]);
  assert.deepEqual(extent({ series, is_log: true }), { low: -1, high: 8, hidden: 2 });
  assert.equal(extent({ series, is_log: false }).hidden, 0);
});

test("moments have the unit that the part that is seen needs", () => {
  assert.equal(tickText(30, 80), "30 s");
  assert.equal(tickText(33.6395, 0.4), "33,639.5 ms");
  assert.equal(tickText(0.000012, 1e-5), "12 µs");
  assert.equal(seconds(0), "0 s");
  assert.equal(shown(19_512.4), "19,510");
  assert.equal(shown(3782.6), "3,783");
  assert.equal(shown(7_036_000.5), "7,036,000");
});

const node = (name, parent, tone, calls = 1, errors = 0) => ({ name, parent, tone, calls, errors, link: "" });
const nodes = [
  node("model", -1, "error", 9, 3), node("model.a", 0, "warning", 3), node("model.b", 0, "error", 6, 3),
  node("model.b.x", 2, "error", 2, 1), node("model.b.y", 2, "error", 4, 2), node("other", -1, "pass", 1),
];

test("a tree opens along the worst verdict, of two alike along the one with more errors", () => {
  assert.deepEqual(worstPath(nodes, childrenOf(nodes)), [0, 2, 4]);
});

test("a tree in which nothing is wrong opens no further than its root", () => {
  const fine = [node("m", -1, "pass"), node("m.a", 0, "skip"), node("m.a.b", 1, "pass")];
  assert.deepEqual(worstPath(fine, childrenOf(fine)), [0]);
});

test("open rows stand in the order of the model with their places", () => {
  const rows = openRows(childrenOf(nodes), new Set([0, 2]));
  assert.deepEqual(rows.map((row) => row.index), [0, 1, 2, 3, 4, 5]);
  assert.deepEqual(rows[4], { index: 4, level: 3, position: 2, siblings: 2 });
  assert.deepEqual(openRows(childrenOf(nodes), new Set()).map((row) => row.index), [0, 5]);
});

test("a deep tree of 20,000 modules has its rows", () => {
  const deep = Array.from({ length: 20_000 }, (_, index) => node(`m${index}`, index - 1, "error", 1, 1));
  const children = childrenOf(deep);
  const path = worstPath(deep, children);
  assert.equal(path.length, 20_000);
  assert.equal(openRows(children, new Set(path)).length, 20_000);
});

test("a module is named without its parent, with its calls", () => {
  assert.equal(ownName(nodes, 4), "y");
  assert.equal(ownName([node("m", -1, "pass"), node("n.a", 0, "pass")], 1), "n.a");
  assert.equal(countWords(nodes[4]), "2 of 4 calls in error");
  assert.equal(countWords(nodes[5]), "1 call");
});

test("a scale of bars is as wide as the farthest metric needs", () => {
  const bar = (value, limit, is_least = false) => ({ name: "", value, limit, is_least });
  assert.equal(decadesBeyond([]), 4);
  assert.equal(decadesBeyond([bar(2, 1), bar(null, 1), bar(5, null), bar(0, 1)]), 4);
  assert.equal(decadesBeyond([bar(1e5, 1), bar(3e6, 1)]), 7);
  assert.equal(decadesBeyond([bar(1e5, 1)]), 5);
  assert.equal(decadesBeyond([bar(0.5, 1 - 1e-9, true)]), 9);
  assert.deepEqual([powerOfTen(4), powerOfTen(7), powerOfTen(12), powerOfTen(-2)], ["10,000", "10,000,000", "1e12", "0.01"]);
});
