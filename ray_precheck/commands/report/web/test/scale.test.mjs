import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "./bundled.mjs";

const {
  countPlace, cut, cutEnd, edgePlaces, everyNth, heatColor, heatScale, inkOn, linearTicks, logTicks, placeOf,
} = await bundled("charts/scale.ts");

test("linear ticks are round and within their ends", () => {
  assert.deepEqual(linearTicks(0, 96, 5), [0, 20, 40, 60, 80]);
  assert.deepEqual(linearTicks(0.31, 0.74, 5), [0.4, 0.5, 0.6, 0.7]);
  assert.deepEqual(linearTicks(-3, 3, 3), [-2, 0, 2]);
  assert.deepEqual(linearTicks(5, 5, 4), [5]);
});

test("logarithmic ticks are powers of ten, equally far apart", () => {
  assert.deepEqual(logTicks(1, 1000, 5), [1, 10, 100, 1000]);
  assert.deepEqual(logTicks(3e-7, 2e5, 4), [1e-6, 1e-3, 1, 1e3]);
  assert.deepEqual(logTicks(1e-5, 1e5, 4), [1e-3, 1, 1e3]);
  assert.deepEqual(logTicks(2, 9, 4), []);
});

test("labels are thinned to those that have room", () => {
  assert.equal(everyNth(24, 14), 1);
  assert.equal(everyNth(1.5, 14), 10);
  assert.equal(cut("torch.nn.functional.conv2d", 10), "…al.conv2d");
  assert.equal(cutEnd("softmax.481.forward", 8), "softmax…");
  assert.equal(cut("short", 5), "short");
});

test("a value at the limit is within it, and one just beyond it is not", () => {
  const { place } = heatScale([0.001, 1, 300], 1);
  assert.ok(place(1) <= 0);
  assert.ok(place(1 + 1e-12) > 0);
  assert.notDeepEqual(heatColor(place(1), true, "light"), heatColor(place(1 + 1e-12), true, "light"));
});

test("a heat scale reaches over the powers of ten of its values, the limit in the middle", () => {
  const scale = heatScale([0.02, null, 0, 345, 1e308], 1);
  assert.deepEqual([scale.low, scale.middle, scale.high], [0.01, 1, 1000]);
  assert.equal(scale.place(0.1), -0.5);
  assert.equal(scale.place(0), -1);
  assert.equal(scale.place(1000), 1);
  assert.equal(scale.place(1e308), 1);
  assert.ok(Math.abs(scale.place(10) - 1 / 3) < 1e-12);
});

test("a scale of ratios to another limit than 1 is taken in units of it", () => {
  const scale = heatScale([1e-6, 0.05], 1e-4);
  assert.equal(scale.place(1e-4), 0);
  assert.equal(scale.place(1e-6), -1);
  assert.ok(Math.abs(scale.high / 0.1 - 1) < 1e-12);
});

test("with a limit of 0 everything above it is beyond, and 0 is not", () => {
  const { place } = heatScale([0, 3, 40], 0);
  assert.equal(place(0), 0);
  assert.ok(place(1) > 0 && place(1) < place(3) && place(3) < place(40));
});

test("without a limit no color says error", () => {
  const { place, above } = heatScale([1e-3, 5], null);
  assert.equal(above, null);
  const [red, , blue] = heatColor(place(5), false, "light");
  assert.ok(blue > red);
});

test("numbers in cells can be read on every color", () => {
  const light = ([red, green, blue]) => red * 0.2126 + green * 0.7152 + blue * 0.0722;
  for (const scheme of ["light", "dark", "print"]) {
    for (const hasLimit of [true, false]) {
      for (let place = -1; place <= 1; place += 0.05) {
        const color = heatColor(place, hasLimit, scheme);
        assert.ok(Math.abs((inkOn(color) === "#fff" ? 255 : 17) - light(color)) > 90, `${scheme} ${place} ${color}`);
      }
    }
  }
});

test("blue is within and orange is beyond in every scheme", () => {
  for (const scheme of ["light", "dark", "print"]) {
    for (let place = 0.05; place <= 1; place += 0.05) {
      const [within, beyond] = [heatColor(-place, true, scheme), heatColor(place, true, scheme)];
      assert.ok(within[2] > within[0], `${scheme} ${-place} ${within}`);
      assert.ok(beyond[0] > beyond[2], `${scheme} ${place} ${beyond}`);
    }
  }
});

test("bins of a logarithmic histogram are equally wide, also with open ends", () => {
  assert.deepEqual(edgePlaces([0, 1e-3, 1, null], true), [0, 1 / 3, 2 / 3, 1]);
});

test("bins of a linear histogram are as wide as their edges are apart, open ends as the mean", () => {
  assert.deepEqual(edgePlaces([0, 1, 4], false), [0, 0.25, 1]);
  assert.deepEqual(edgePlaces([null, 0, 2, null], false), [0, 1 / 3, 2 / 3, 1]);
});

test("a limit stands between its edges by its logarithm", () => {
  const edges = [1e-4, 1e-2, 1];
  const places = edgePlaces(edges, true);
  assert.ok(Math.abs(placeOf(1e-3, edges, places, true) - 0.25) < 1e-12);
  assert.equal(placeOf(1e-2, edges, places, true), 0.5);
  assert.equal(placeOf(5, edges, places, true), null);
  assert.equal(placeOf(3, [0, 2, 4], [0, 0.5, 1], false), 0.75);
});

test("one element among a million is seen, none is not", () => {
  assert.ok(countPlace(1, 1e6) > 0.04);
  assert.equal(countPlace(0, 1e6), 0);
  assert.equal(countPlace(1e6, 1e6), 1);
});
