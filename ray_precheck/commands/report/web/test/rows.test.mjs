import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "./bundled.mjs";

const { Strings } = await bundled("blobs.ts");
const {
  cellText, compareWords, csvPieces, inError, ordered, passing, rowName, rowNamed, selected, tableCells, wordsWith,
} = await bundled("rows.ts");

function words(...texts) {
  const bytes = new TextEncoder().encode(texts.join("\0"));
  const ends = [];
  let at = -1;
  for (const text of texts) ends.push((at += new TextEncoder().encode(text).length + 1));
  return new Strings(bytes, Uint32Array.from(ends));
}
const column = (kind, texts, codes = null, values = []) => (
  { heading: kind, kind, words: words(...texts), values: Float64Array.from(values), codes: codes && Uint8Array.from(codes) });
const names = column("name", ["Mint.add.10", "Mint.add.2", "mint.Mul.1", "Mint.add.2.forward"]);
const errors = column("number", ["nan", "-"], [0, 2, 1, 3], [-0.5, 1e-7]);
const verdicts = column("tone", ["pass", "error"], [0, 1, 0, 1]);

test("words are found in their middle, at their ends, in either case, and never across two of them", () => {
  assert.deepEqual([...wordsWith(words("abc", "xABc", "ab", "cab", ""), "abc")], [1, 1, 0, 0, 0]);
  assert.deepEqual([...wordsWith(words("aab", "ab", "b"), "AAB")], [1, 0, 0]);
  assert.deepEqual([...wordsWith(words("b", "a"), "b\0a")], [0, 0]);
  assert.deepEqual([...wordsWith(words("größe", "grosse"), "ße")], [1, 0]);
  assert.deepEqual([...wordsWith(words("a", ""), "")], [1, 1]);
});

test("a search finds what the plain way finds, in random texts", () => {
  let seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  const text = (most) => Array.from({ length: random(most) }, () => "abAB"[random(4)]).join("");
  for (let round = 0; round < 300; round++) {
    const texts = Array.from({ length: 1 + random(9) }, () => text(9));
    const wanted = text(5);
    assert.deepEqual(
      [...wordsWith(words(...texts), wanted)], texts.map((each) => +each.toLowerCase().includes(wanted.toLowerCase())),
      JSON.stringify([texts, wanted]));
  }
});

test("a search looks into all columns, numbers as they are shown", () => {
  const columns = [names, errors, verdicts];
  assert.deepEqual([...selected(columns, 4, "MUL", new Map())], [2]);
  assert.deepEqual([...selected(columns, 4, "1e-7", new Map())], [2]);
  assert.deepEqual([...selected(columns, 4, "ERR", new Map())], [1, 3]);
  assert.deepEqual([...selected(columns, 4, "", new Map())], [0, 1, 2, 3]);
});

test("each word of a search must be found, in whatever column", () => {
  const columns = [names, errors, verdicts];
  assert.deepEqual([...selected(columns, 4, "mint pass", new Map())], [0, 2]);
  assert.deepEqual([...selected(columns, 4, "  ERROR   forward ", new Map())], [3]);
  assert.deepEqual([...selected(columns, 4, "pass error", new Map())], []);
});

test("rows in error are those with a verdict that is one, and a search holds among them", () => {
  const columns = [names, errors, verdicts];
  const marks = inError(columns, 4, { pass: "pass", error: "error" });
  assert.deepEqual([...marks], [0, 1, 0, 1]);
  assert.deepEqual([...selected(columns, 4, "forward", new Map(), marks)], [3]);
  assert.deepEqual([...marks], [0, 1, 0, 1]);
  assert.equal(inError([names, errors], 4, {}), null);
});

test("full names that are hidden name the rows, are found, and are no column that is shown", () => {
  const full = { ...column("name", ["0/add.forward", "0/add.backward", "1/add.forward"]), isHidden: true };
  const short = column("name", ["add", "add", "add"]);
  const cells = tableCells([full, verdicts, short], 0);
  assert.deepEqual(cells.shown, [verdicts, short]);
  assert.equal(cells.linked, 1);
  assert.equal(cells.names, full);
  assert.equal(rowName("", cells, 1), "0/add.backward");
  assert.equal(rowName("target", cells, 2), "target/1/add.forward");
  assert.deepEqual([...selected(cells.all, 3, "backward", new Map())], [1]);
  assert.equal([...csvPieces(cells.shown, Uint32Array.from([0]))].join(""), "tone,name\r\npass,add\r\n");
  const plain = tableCells([errors, names], 1);
  assert.deepEqual([plain.linked, rowName("", plain, 2)], [1, "mint.Mul.1"]);
});

test("filters hold together with the search, ranges leave out what is no number", () => {
  const columns = [names, errors, verdicts];
  assert.deepEqual([...selected(columns, 4, "", new Map([[1, { from: 0 }]]))], [2]);
  assert.deepEqual([...selected(columns, 4, "", new Map([[1, { to: 1 }], [2, { equals: "pass" }]]))], [0, 2]);
  assert.deepEqual([...selected(columns, 4, "mint", new Map([[2, { equals: "error" }]]))], [1, 3]);
  assert.deepEqual([...selected(columns, 4, "", new Map([[0, { contains: "add.2" }]]))], [1, 3]);
});

test("a choice is of the whole word", () => {
  const cells = column("text", ["a", "ab", ""], [0, 1, 2]);
  assert.deepEqual([...passing(cells, { equals: "a" })], [1, 0, 0]);
  assert.deepEqual([...passing(cells, { equals: "" })], [0, 0, 1]);
});

test("names are ordered by the numbers that they write", () => {
  const sorted = (...texts) => {
    const all = words(...texts);
    return texts.map((_, i) => i).sort((i, j) => compareWords(all, i, j)).map((i) => texts[i]);
  };
  assert.deepEqual(sorted("a10", "a9", "a", "a09b", "A9a"), ["a", "a9", "A9a", "a09b", "a10"]);
  assert.deepEqual(sorted("x.12.b", "x.2.c", "x.2", "x.123"), ["x.2", "x.2.c", "x.12.b", "x.123"]);
});

test("rows are ordered by numbers, then words; equal ones stay as they came, both ways; falling, NaN is first", () => {
  const rows = Uint32Array.from([0, 1, 2, 3]);
  assert.deepEqual([...ordered(rows, errors, false)], [0, 2, 3, 1]);
  assert.deepEqual([...ordered(rows, errors, true)], [1, 2, 0, 3]);
  const odd = column("number", ["SKIP", "-"], [2, 3, 1, 0, 2], [5, 7]);
  assert.deepEqual([...ordered(Uint32Array.from([0, 1, 2, 3, 4]), odd, true)], [2, 3, 1, 0, 4]);

  assert.deepEqual([...ordered(rows, verdicts, false)], [1, 3, 0, 2]);
  assert.deepEqual([...ordered(rows, verdicts, true)], [0, 2, 1, 3]);
  assert.deepEqual([...ordered(Uint32Array.from([0, 1, 3]), names, false)], [1, 3, 0]);
});

test("a link names the whole cell, else the first row below it, in the order of rows", () => {
  assert.equal(rowNamed(names, 4, "Mint.add.2"), 1);
  assert.equal(rowNamed(names, 4, "Mint.add"), 0);
  assert.equal(rowNamed(names, 4, "Mint.ad"), -1);
  assert.equal(rowNamed(names, 4, "mint.add.2"), -1);
  assert.equal(rowNamed(names, 4, ""), -1);
  const coded = column("text", ["b.1", "a.1", "b.0"], [1, 2, 0]);
  assert.equal(rowNamed(coded, 3, "b"), 1);
  assert.equal(rowNamed(column("number", [], [1, 0, 2], [3, 4, 45]), 3, "4"), 0);
});

test("numbers are shown as they were kept", () => {
  const cells = column("number", [], [0, 1, 2, 3, 4, 5], [-Infinity, 1.23e-5, 0.99999871, 12, 16777217, Infinity]);
  assert.deepEqual([0, 1, 2, 3, 4, 5].map((row) => cellText(cells, row)), ["-inf", "1.23e-5", "0.99999871", "12", "16777217", "inf"]);
});

test("CSV quotes what it must, and no name is a formula", () => {
  const cells = column("name", ["=1+1", 'a"b,c', "plain"]);
  assert.equal([...csvPieces([cells], Uint32Array.from([0, 1, 2]))].join(""), "name\r\n'=1+1\r\n\"a\"\"b,c\"\r\nplain\r\n");
  assert.equal([...csvPieces([errors], Uint32Array.from([0]))].join(""), "number\r\n-0.5\r\n");
});
