"""How the parts of a tensor make the whole that both runs have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ray_precheck.errors import UsageError
from ray_precheck.trace.items import bare_name
from ray_precheck.trace.layouts.axes import parsed_axes
from ray_precheck.trace.layouts.parts import (
    PartValues,
    added_parts,
    of_array,
    rooted_parts,
    with_statistics_of,
)
from ray_precheck.trace.layouts.run_calls import added_words
from ray_precheck.trace.layouts.wholes import (
    REPLICA,
    SHARD,
    SUM,
    AxisRole,
    Fold,
    PartGrid,
    WholeMaker,
    Wholes,
)

pytestmark = pytest.mark.unit
WHOLE = np.random.default_rng(0).normal(size=(6, 8))


class Files:
    """The values of parts, with their elements or their statistics alone."""

    def __init__(self, *, has_arrays: bool) -> None:
        self.arrays: list[Any] = []
        self.has_arrays = has_arrays

    def element(self, array: Any) -> dict[str, Any]:
        self.arrays.append(array)
        return {"shape": list(array.shape), "number": len(self.arrays) - 1, **of_array(array)}

    def values(self, element: dict[str, Any]) -> PartValues:
        array = self.arrays[element["number"]]
        return PartValues(array.shape, of_array(array), array if self.has_arrays else None)


def grid(
    parts: Sequence[Any], sizes: tuple[int, ...], role: AxisRole, *, has_arrays: bool = False
) -> PartGrid:
    files = Files(has_arrays=has_arrays)
    elements = [files.element(part) for part in parts]
    return PartGrid(sizes, elements, [files] * len(parts), [None] * len(sizes), role)  # type: ignore[list-item]


def made(
    parts: Sequence[Any],
    whole: Any = WHOLE,
    role: AxisRole | None = None,
    *,
    has_arrays: bool = False,
    maker: WholeMaker | None = None,
) -> Wholes:
    role = role or AxisRole()
    found = (maker or WholeMaker()).make(
        grid(parts, (len(parts),), role, has_arrays=has_arrays),
        grid([whole], (), role, has_arrays=has_arrays),
    )
    assert found is not None
    return found


@pytest.mark.parametrize("dim", [0, 1])
def test_shapes_tell_along_which_dimension_parts_are_shards(dim: int) -> None:
    found = made(np.split(WHOLE, 2, dim))
    assert found.way.target == (Fold(SHARD, dim),)
    assert found.target.statistics == pytest.approx(of_array(WHOLE))


def test_shards_need_not_be_equal() -> None:
    assert made([WHOLE[:4], WHOLE[4:]]).target.shape == (6, 8)


def test_of_replicas_that_differ_the_one_that_is_off_stands_for_all() -> None:
    found = made([WHOLE, WHOLE * 1.01])
    assert found.way.target == (Fold(REPLICA),)
    assert found.odd == (1,)
    assert found.target.statistics == pytest.approx(of_array(WHOLE * 1.01))


def test_addends_are_added_up_only_where_the_record_makes_a_sum() -> None:
    half = np.random.default_rng(1).normal(size=(6, 8))
    parts = [half, WHOLE - half]
    added = made(parts, role=AxisRole(may_add=frozenset([0])), has_arrays=True)
    assert added.way.target == (Fold(SUM),)
    assert added.distance < 1e-12
    lacking = made(parts, has_arrays=True)
    assert lacking.way.target == (Fold(REPLICA),)
    assert lacking.distance == np.inf


def test_addends_that_nothing_adds_up_are_told() -> None:
    half = np.random.default_rng(1).normal(size=(6, 8))
    assert made([half, WHOLE - half], has_arrays=True).is_not_added
    assert not made([half, WHOLE * 2], has_arrays=True).is_not_added


def test_gradients_of_local_means_are_scaled_and_the_first_one_decides() -> None:
    maker = WholeMaker()
    role = AxisRole(is_backward=True)
    local = [2 * WHOLE[:3], 2 * WHOLE[3:]]
    first = made(local, role=role, maker=maker)
    assert first.way.target == (Fold(SHARD, 0, is_scaled=True),)
    assert maker.scales == {(0, 0): True}
    other = made([WHOLE[:3], WHOLE[3:]], role=role, maker=maker)  # half of what is right
    assert other.target.statistics["Norm"] == pytest.approx(np.linalg.norm(WHOLE) / 2)


@pytest.mark.parametrize("own", [[[0, 2, 4], [1, 3, 5]], [[0, 1, 2], [3, 4, 5]]])
def test_dealt_samples_and_stretches_find_their_order(own: list[list[int]]) -> None:
    found = made([WHOLE[rows] for rows in own], has_arrays=True)
    assert not found.is_unordered
    assert found.target.array is not None
    assert np.array_equal(found.target.array, WHOLE)


def test_of_parts_in_an_unknown_order_statistics_are_compared() -> None:
    found = made([WHOLE[[5, 0, 3]], WHOLE[[1, 4, 2]]], has_arrays=True)
    assert found.is_unordered
    assert found.target.array is None
    assert found.target.statistics == pytest.approx(of_array(WHOLE))


def test_agreement_tells_which_of_two_axes_shards() -> None:
    parts = [WHOLE[:3], WHOLE[:3], WHOLE[3:], WHOLE[3:]]
    found = WholeMaker().make(grid(parts, (2, 2), AxisRole()), grid([WHOLE], (), AxisRole()))
    assert found is not None
    assert found.way.target == (Fold(SHARD, 0), Fold(REPLICA))


def test_parts_of_another_shape_make_no_whole() -> None:
    maker = WholeMaker()
    parts = grid([WHOLE[:2], WHOLE[2:4]], (2,), AxisRole())
    assert maker.make(parts, grid([WHOLE], (), AxisRole())) is None


def test_a_layout_is_read_and_wrong_ones_are_named() -> None:
    assert parsed_axes("dp=2, tp=4,cp=1") == (("dp", 2), ("tp", 4))
    for wrong in ("dp", "dp=0", "dp=2,dp=2", ""):
        with pytest.raises(UsageError, match="an axis and its number of ranks are expected"):
            parsed_axes(wrong)


def test_names_lose_what_wrappers_add() -> None:
    assert bare_name("module._orig_mod.layers.0._checkpoint_wrapped_module.q.weight") == (
        "layers.0.q.weight"
    )


def test_a_norm_of_shards_is_the_root_of_the_sum_of_squares() -> None:
    norms = [np.array(np.linalg.norm(part)) for part in (WHOLE[:2], WHOLE[2:])]
    found = rooted_parts([PartValues((), of_array(each)) for each in norms])
    assert found.statistics["Mean"] == pytest.approx(np.linalg.norm(WHOLE))


def test_a_mean_of_nothing_does_not_tell_a_sum_from_a_mean() -> None:
    parts = [WHOLE - WHOLE.mean(), WHOLE[::-1] - WHOLE.mean()]
    addends = added_parts([PartValues(each.shape, of_array(each)) for each in parts])
    whole = PartValues(WHOLE.shape, of_array(np.sum(parts, axis=0)))
    assert with_statistics_of(addends, whole, 2).statistics["Norm"] is None


def test_a_part_of_names_is_a_wrapper_only_where_the_rest_is_the_other_runs() -> None:
    others = ["blocks.0.n1.weight", "blocks.1.n1.weight", "head.weight"]
    wrapped = ["blocks.0.block.n1.weight", "blocks.1.block.n1.weight", "head.weight"]
    assert added_words(wrapped, others) == {"block"}
    assert not added_words(others, wrapped)
    assert not added_words(["blocks.0.extra.weight"], others)
