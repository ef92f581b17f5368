"""How well the sketches of two tensors tell how far these are apart: 0.8 to 1.25 of the real norm."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.tensors import stored
from ray_precheck.numerics import sketch
from ray_precheck.numerics.sketch import estimated_norm

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
LOWEST, HIGHEST = 0.8, 1.25
ROWS_OF_PAIR, PAIRS = 40, 32


def kept(values: Array) -> Array:
    row, exponent = stored(sketch.sketch(values))
    return np.ldexp(row.astype(np.float64), exponent)


def distance(one: Array, other: Array) -> float:
    """The L2 norm of the difference of two tensors, as their stored sketches say it."""
    return estimated_norm(kept(one) - kept(other))


def only(rng: Rng, shape: tuple[int, ...], place: Any) -> Array:
    """A difference of random signs in a part of a tensor."""
    change = np.zeros(shape)
    change[place] = rng.choice([-1.0, 1.0], change[place].shape)
    return change


def sparse(rng: Rng, shape: tuple[int, ...], count: int) -> Array:
    flat = only(rng, (shape[0] * shape[1],), rng.choice(shape[0] * shape[1], count, replace=False))
    return flat.reshape(shape)


DIFFERENCES: dict[str, Callable[[Rng, tuple[int, int]], Array]] = {
    "everywhere": lambda rng, shape: rng.standard_normal(shape),
    "an offset": lambda rng, shape: np.ones(shape),
    "one column": lambda rng, shape: only(rng, shape, np.s_[:, rng.integers(shape[1])]),
    "one row": lambda rng, shape: only(rng, shape, rng.integers(shape[0])),
    "all rows alike": lambda rng, shape: np.ones((shape[0], 1)) * rng.standard_normal(shape[1]),
    "all columns alike": lambda rng, shape: np.ones(shape) * rng.standard_normal((shape[0], 1)),
    "of rank 1": lambda rng, shape: np.outer(*(rng.standard_normal(size) for size in shape)),
    "1 % of the elements": lambda rng, shape: sparse(rng, shape, shape[0] * shape[1] // 100 + 1),
    "one element": lambda rng, shape: sparse(rng, shape, 1),
    "the tail": lambda rng, shape: only(rng, shape, np.s_[-shape[0] // 9 :]),
}
WIDTHS = (7, 63, 64, 100, 256, 257, 768, 1000, 1024, 4096)


def share_of_kind(name: str) -> float:
    within = 0
    for pair in range(PAIRS):
        rng = np.random.default_rng([pair, *name.encode()])
        shape = ROWS_OF_PAIR, int(rng.choice(WIDTHS))
        one = rng.standard_normal(shape).astype(np.float32)
        change = DIFFERENCES[name](rng, shape)
        size = np.exp(rng.uniform(np.log(1e-4), 0)) * np.linalg.norm(one) / np.linalg.norm(change)
        other = (one + size * change).astype(np.float32)
        real = float(np.linalg.norm(other.astype(np.float64) - one))
        within += LOWEST <= distance(one, other) / real <= HIGHEST
    return within / PAIRS


def test_estimates_are_within_the_band() -> None:
    shares = {name: share_of_kind(name) for name in DIFFERENCES}
    assert np.mean(list(shares.values())) >= 0.95
    assert min(shares.values()) >= 0.84, shares


def one_larger(values: Array) -> Array:
    found = values.copy()
    found[3, 5] += 1e-3 * np.abs(values).max()
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.ravel()[::-1].reshape(values.shape),
        lambda values: values.T,
        one_larger,
    ],
    ids=["a reversal", "a transposition", "one element by 1e-3 of the largest"],
)
@pytest.mark.parametrize("side", [32, 316])
def test_what_moves_no_statistic_moves_the_sketch(
    change: Callable[[Array], Array], side: int
) -> None:
    values = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)
    assert distance(values, change(values).astype(np.float32)) > 1e-5 * np.linalg.norm(values)


def one_column(seed: int) -> Array:
    """A column as wide as a block of the map, in which it meets only its own sign and rotation."""
    return only(np.random.default_rng(0), (100, sketch.BLOCK), np.s_[:, 200 * seed]) ** 2


def an_offset(seed: int) -> Array:
    return np.ones(20_000 + 999 * seed)


ROTATIONS = sketch.rotations
# What may be broken of the map without a change of any shape, and the difference that notices it.
BROKEN: list[tuple[ModuleType, str, Callable[..., Array], Callable[[int], Array]]] = [
    (
        sketch,
        "rotations",
        lambda numbers: np.zeros((numbers.size, sketch.GROUPS), np.int64),
        one_column,
    ),
    (
        sketch,
        "rotations",
        lambda numbers: np.broadcast_to(ROTATIONS(numbers[:1] * 0), (numbers.size, sketch.GROUPS)),
        one_column,
    ),
    (
        sketch,
        "row_signs",
        lambda numbers: np.ones((numbers.size, sketch.ROWS), np.float32),
        one_column,
    ),
    (sketch, "fixed_signs", lambda: np.ones(sketch.BLOCK, np.float32), an_offset),
]


def share_within(difference: Callable[[int], Array]) -> float:
    changes = [difference(seed).astype(np.float32) for seed in range(40)]
    ratios = [estimated_norm(sketch.sketch(each)) / np.linalg.norm(each) for each in changes]
    return float(np.mean([LOWEST <= ratio <= HIGHEST for ratio in ratios]))


def forget_tables() -> None:
    for cached in (sketch._tables, sketch._signs_of_group):
        cached.cache_clear()


@pytest.mark.parametrize(("module", "part", "broken", "difference"), BROKEN)
def test_a_worse_map_is_noticed(
    module: ModuleType,
    part: str,
    broken: Callable[..., Array],
    difference: Callable[[int], Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert share_within(difference) >= 0.95
    monkeypatch.setattr(sketch, "COMPILED", None)  # which has the map of its own
    monkeypatch.setattr(module, part, broken)
    forget_tables()
    try:
        assert share_within(difference) < 0.8
    finally:
        monkeypatch.undo()
        forget_tables()
