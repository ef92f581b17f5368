"""The short form of the yardstick of sketches, and that it notices worse sketches."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from ray_precheck.numerics import sketch, sketch_map
from ray_precheck.numerics.sketch import estimated_norm
from scripts import capture_sketches
from scripts.capture_sketches import HIGHEST, KINDS, LOWEST, SEEN, measure_kind

NAMED = {kind.name: kind for kind in KINDS}


def test_names_of_kinds_are_unique() -> None:
    assert len(NAMED) == len(KINDS) == 35


def test_estimates_are_within_the_band() -> None:
    """1,088 pairs over all kinds that are promised: 95 % of all, and no kind far below."""
    shares = {kind.name: measure_kind(kind, 32, 10_000, 1).within for kind in KINDS if kind.common}
    assert np.mean(list(shares.values())) >= 0.95
    assert min(shares.values()) >= 0.84, shares


@pytest.mark.parametrize("name", SEEN)
def test_what_moves_no_statistic_moves_the_sketch(name: str) -> None:
    rng = np.random.default_rng(0)
    assert min(SEEN[name](rng, size) for size in (1_000, 100_000)) > 1e-5


def test_the_command_prints_its_table_and_says_whether_it_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ["--pairs", "40", "--elements", "2000", "--only"]
    assert capture_sketches.main([*few, "one element", "everywhere, normal"]) == 0
    out = capsys.readouterr().out
    assert "one element                   100.0%" in out
    assert out.rstrip().endswith("as promised")


def all_ones(numbers: np.ndarray) -> np.ndarray:
    return np.ones((numbers.size, sketch_map.ROWS), np.float32)


def no_rotation(numbers: np.ndarray) -> np.ndarray:
    return np.zeros((numbers.size, sketch_map.GROUPS), np.int64)


def same_rotations(numbers: np.ndarray) -> np.ndarray:
    return np.broadcast_to(ROTATIONS(numbers[:1] * 0), (numbers.size, sketch_map.GROUPS))


def all_positive() -> np.ndarray:
    return np.ones(sketch_map.BLOCK, np.float32)


def one_column(seed: int) -> np.ndarray:
    """A column as wide as a block of the map, in which it meets only its own sign and rotation."""
    change = np.zeros((100, sketch_map.BLOCK), np.float32)
    change[:, 200 * seed] = 1
    return change


def an_offset(seed: int) -> np.ndarray:
    return np.ones(20_000 + 999 * seed, np.float32)


ROTATIONS = sketch_map.rotations
# What may be broken of the map without a change of any shape, and the difference that notices it.
BROKEN: list[tuple[ModuleType, str, Callable[..., np.ndarray], Callable[[int], np.ndarray]]] = [
    (sketch_map, "rotations", no_rotation, one_column),
    (sketch_map, "rotations", same_rotations, one_column),
    (sketch, "row_signs", all_ones, one_column),
    (sketch, "fixed_signs", all_positive, an_offset),
]


def share_within(difference: Callable[[int], np.ndarray]) -> float:
    ratios = [
        estimated_norm(sketch.sketch(change)) / np.linalg.norm(change)
        for change in map(difference, range(40))
    ]
    return float(np.mean([LOWEST <= ratio <= HIGHEST for ratio in ratios]))


def forget_tables() -> None:
    for cached in (sketch._tables, sketch._signs_of_group):
        cached.cache_clear()


@pytest.mark.parametrize(("module", "part", "broken", "difference"), BROKEN)
def test_a_worse_map_is_noticed(
    module: ModuleType,
    part: str,
    broken: Callable[..., np.ndarray],
    difference: Callable[[int], np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert share_within(difference) >= 0.95
    monkeypatch.setattr(module, part, broken)
    forget_tables()
    try:
        assert share_within(difference) < 0.8
    finally:
        monkeypatch.undo()
        forget_tables()
