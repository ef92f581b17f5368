"""The sketches of the parts of a sharded tensor add up to that of the whole."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.capture.recording import measures
from ray_precheck.capture.recording.measures import (
    LocalPart,
    PartsDoNotAddUp,
    Placing,
    local_part,
    sketch_part,
)
from ray_precheck.numerics.sketch import sketch


def box_of(part: LocalPart) -> tuple[slice, ...]:
    return tuple(
        slice(offset, offset + size) for offset, size in zip(part.offsets, part.shape, strict=True)
    )


def sum_over_mesh(
    values: np.ndarray, mesh: Sequence[int], placings: Sequence[Placing]
) -> np.ndarray:
    total = np.zeros(64)
    for coordinate in np.ndindex(*mesh):
        part = local_part(values.shape, mesh, coordinate, placings)
        if part.counted:
            total += sketch_part(values[box_of(part)], values.shape, part.offsets)
    return total


def values_of(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def assert_sum(values: np.ndarray, mesh: Sequence[int], placings: Sequence[Placing]) -> None:
    norm = float(np.linalg.norm(values))
    np.testing.assert_allclose(
        sum_over_mesh(values, mesh, placings), sketch(values), rtol=0, atol=1e-6 * norm
    )


SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.data(), SHAPES, st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_shards_of_any_mesh_add_up(data: st.DataObject, shape: list[int], mesh: list[int]) -> None:
    placing = st.one_of(st.none(), st.integers(0, len(shape) - 1))
    assert_sum(values_of(shape), mesh, [data.draw(placing) for _ in mesh])


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(7, 33, 1024), (3, 5, 20_011), (700, 9, 10), (2, 90_000, 1)])
def test_uneven_shards_of_large_tensors_add_up(shape: tuple[int, ...], dim: int) -> None:
    assert_sum(values_of(shape), [4], [dim])


@pytest.mark.parametrize(
    ("shape", "mesh", "placings"),
    [
        ((20, 30, 23, 7), (4, 4), (1, 2)),  # many short ranges of rows: none may go to a window
        ((4, 31, 17, 24), (4, 3), (2, 3)),
        ((3, 200, 23, 7), (2, 2), (1, 2)),
        ((36, 32, 34), (3, 2), (1, 2)),
    ],
)
def test_boxes_in_the_middle_of_a_tensor_add_up(
    shape: tuple[int, ...], mesh: tuple[int, ...], placings: tuple[int, ...]
) -> None:
    assert_sum(values_of(shape), mesh, placings)


def test_the_three_ways_to_sketch_runs_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of((300, 640))
    box, offsets = values[17:290, 64:320], (17, 64)
    found = {}
    for name, long, thinnest in (("window", 4096, 32), ("long", 1, 32), ("looked up", 4096, 0)):
        monkeypatch.setattr(measures, "_LONG", long)
        monkeypatch.setattr(measures, "_THINNEST", thinnest)
        if name == "window":
            with monkeypatch.context() as patch:
                patch.setattr(measures, "_sketch_looked_up", None)
                patch.setattr(measures, "_WINDOW", 6_400)
                monkeypatch.setattr(measures, "_LONG", 1000)
                found[name] = sketch_part(box, values.shape, offsets)
        else:
            found[name] = sketch_part(box, values.shape, offsets)
    whole = np.zeros_like(values)
    whole[17:290, 64:320] = box
    for each in found.values():
        np.testing.assert_allclose(each, sketch(whole), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 1 << 14])
def test_rows_are_numbered_in_bounded_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_ROWS_AT_ONCE", rows)
    values = values_of((6, 5, 4, 3))
    assert_sum(values, [2, 3, 2], [1, 0, 3])


@pytest.mark.parametrize("dtype", ["complex64", "float64", "int32", "bool", "float16"])
def test_shards_of_other_dtypes_add_up(dtype: str) -> None:
    values = (values_of((9, 40, 30)) * 5).astype(dtype)
    assert_sum(values, [2, 3], [0, 2])


def test_a_shard_with_values_that_are_not_finite_keeps_the_others() -> None:
    values = values_of((50, 60))
    clean = values.copy()
    values[3, 50], clean[3, 50] = np.nan, 0
    np.testing.assert_allclose(sum_over_mesh(values, [2], [1]), sketch(clean), rtol=0, atol=1e-4)


def test_pieces_are_those_of_torch_chunk() -> None:
    """7 in 4 pieces: 2, 2, 2, 1; 5 in 4 pieces: 2, 2, 1, 0."""
    for size, wanted in ((7, [2, 2, 2, 1]), (5, [2, 2, 1, 0]), (0, [0, 0, 0, 0])):
        parts = [local_part((size,), (4,), (place,), (0,)) for place in range(4)]
        assert [part.shape[0] for part in parts] == wanted
        begins = [0, *itertools.accumulate(wanted)]
        assert [part.offsets[0] for part in parts] == begins[:4]


def test_one_of_the_processes_that_hold_the_same_part_counts() -> None:
    parts = [local_part((8, 4), (2, 3), place, (None, 0)) for place in np.ndindex(2, 3)]
    assert [part.counted for part in parts] == [True] * 3 + [False] * 3
    assert {part.shape for part in parts} == {(3, 4), (2, 4)}


def test_parts_that_do_not_add_up_say_so() -> None:
    with pytest.raises(PartsDoNotAddUp, match=r"placement Partial\(sum\).*no sketch of it"):
        local_part((8,), (2,), (0,), ("Partial(sum)",))


@pytest.mark.parametrize("offsets", [(0, 3), (-1, 0), (0,)])
def test_a_part_outside_the_tensor_is_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"does not lie in a tensor of shape \(4, 4\)"):
        sketch_part(np.zeros((2, 2)), (4, 4), offsets)


def test_an_empty_part_has_an_empty_sketch() -> None:
    assert not sketch_part(np.zeros((0, 4)), (5, 4), (5, 0)).any()
