"""What a search by statistics leaves alone: unset memory, and the rounding of half types that they hide."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import LocationPlan, MeasuredEvidence, plan_location
from ray_precheck.commands.locate.search import located_in
from ray_precheck.commands.locate.walk.nouns import OwnError, RootKind
from ray_precheck.trace.side import open_side

sys.path.append(str(Path(__file__).parents[2] / "trace"))
from tests.unit.trace.overflow_records import forward, tensor, write_dump

pytestmark = pytest.mark.unit


def roots_of(folder: Path, target: Mapping[str, Any], golden: Mapping[str, Any]) -> list[str]:
    """Return the keys of the records where errors begin, by statistics alone."""
    paths = [
        write_dump(folder / side, records)
        for side, records in (("target", target), ("golden", golden))
    ]
    with open_side(paths[0]) as ours, open_side(paths[1]) as theirs:
        plan = plan_location(ours, theirs, SearchOptions())
        located = located_in(ours, theirs, plan, None, is_first_step=True)
    return [root.key for root in located.roots]


def drawn(garbage: float, *, gives: str = "Torch.empty.0") -> dict[str, Any]:
    """Return a run that draws a mask into memory."""
    memory, mask = tensor(garbage), tensor(1.0, 0.0)
    return {
        f"{gives}.forward": forward([], [memory]),
        "Tensor.bernoulli_.0.forward": forward([memory], [mask]),
        "Torch.mul.0.forward": forward([mask, mask], [tensor(1.0, 0.0)]),
    }


def test_what_stood_in_memory_is_nobodys_error(tmp_path: Path) -> None:
    assert roots_of(tmp_path / "a", drawn(5.0), drawn(-3e20)) == []
    # What an operator gave is no such memory.
    given = drawn(5.0, gives="Torch.neg.0"), drawn(-3e20, gives="Torch.neg.0")
    assert roots_of(tmp_path / "b", *given) == ["Torch.neg.0.forward"]


def written(garbage: float, *, others: float = 127.0, gives: str = "Torch.empty_like.0") -> Any:
    """Return a run that writes a part of a tensor, through a view of it."""
    memory, rest, other = tensor(garbage), tensor(garbage, -9.0), tensor(others, 0.0)
    view = tensor(garbage, shape=(8, 4))
    return {
        f"{gives}.forward": forward([], [memory]),
        "Torch.arange.0.forward": forward([], [other]),
        "Tensor.view.0.forward": forward([memory], [view]),
        "Tensor.__setitem__.0.forward": forward([view, other], [rest]),
        "Torch.sum.0.forward": forward([rest], [tensor(garbage * 2)]),
    }


def test_a_record_that_writes_into_unset_memory_is_not_blamed_for_the_rest_of_it(
    tmp_path: Path,
) -> None:
    assert roots_of(tmp_path / "a", written(5.0), written(7e18)) == []
    relu = written(5.0, gives="Torch.relu.0"), written(7e18, gives="Torch.relu.0")
    assert roots_of(tmp_path / "b", *relu) == ["Torch.relu.0.forward"]


def test_unset_memory_that_holds_by_chance_what_another_record_gave_is_unset(
    tmp_path: Path,
) -> None:
    def run(garbage: float) -> dict[str, Any]:
        memory, numbers = tensor(garbage, 0.0), tensor(127.0, 0.0)
        return {
            "Torch.empty_like.0.forward": forward([numbers], [memory]),
            "Torch.arange.0.forward": forward([], [numbers]),
            "Tensor.__setitem__.0.forward": forward([memory, numbers], [numbers]),
        }

    assert roots_of(tmp_path, run(127.0), run(4.6e18)) == []


def test_what_is_written_over_says_nothing_wherever_it_comes_from(tmp_path: Path) -> None:
    def run(garbage: float, name: str) -> dict[str, Any]:
        memory, source = tensor(garbage), tensor(1.0)
        return {
            "Torch.neg.0.forward": forward([tensor()], [source]),
            f"Tensor.{name}.0.forward": forward([memory, source], [source]),
        }

    assert roots_of(tmp_path / "a", run(5.0, "copy_"), run(-3e20, "copy_")) == []
    assert roots_of(tmp_path / "b", run(5.0, "max"), run(-3e20, "max")) == ["Tensor.max.0.forward"]


@pytest.mark.parametrize(("shape", "roots"), [((64,), 0), ((8, 8), 1)])
def test_the_gradient_of_a_bias_is_the_sum_of_rows_that_no_record_tells_of(
    tmp_path: Path, shape: tuple[int, ...], roots: int
) -> None:
    def run(top: float) -> dict[str, Any]:
        gradient = tensor(top, dtype="torch.bfloat16", shape=shape)
        weight = tensor(7.0, dtype="torch.bfloat16", shape=shape)
        fields = {"params": [weight], "grads": [gradient], "lr": {"type": "float", "value": 0.0}}
        return {
            "Torch.neg.0.forward": forward([tensor()], [tensor(1.0)]),
            "Optimizer.SGD.0.forward": forward([fields], [{"params": [weight]}]),
        }

    assert len(roots_of(tmp_path, run(2.0), run(2.6))) == roots


def cast(share: float, half: str) -> dict[str, Any]:
    """Return a run whose statistics differ by a hair at first, and by a thousandth in single precision."""
    inputs = tensor(2.0, dtype=half)
    taken = tensor(2.0 * (1 + share / 1000), -1.0, dtype=half)
    wide = tensor(2.0 * (1 + share / 1000), -1.0)
    return {
        "Torch.neg.0.forward": forward([inputs], [taken]),
        "Tensor.to.0.forward": forward([taken], [wide]),
        "Torch.mul.0.forward": forward([wide, wide], [tensor(4.0 * (1 + share))]),
    }


@pytest.mark.parametrize(
    ("half", "roots"), [("torch.bfloat16", []), ("torch.float32", ["Torch.mul.0.forward"])]
)
def test_statistics_of_single_precision_hide_the_rounding_of_half_types_before(
    tmp_path: Path, half: str, roots: list[str]
) -> None:
    assert roots_of(tmp_path, cast(1e-3, half), cast(0.0, half)) == roots


@pytest.mark.parametrize(("before", "roots"), [(0.006, []), (1e-4, ["Torch.matmul.0.forward"])])
def test_what_differed_on_the_way_may_come_out_again(
    tmp_path: Path, before: float, roots: list[str]
) -> None:
    def run(share: float) -> dict[str, Any]:
        taken, passed, given = (
            tensor(2.0, -1.0, dtype="torch.bfloat16", Norm=2.0 * (1 + each * share))
            for each in (before, 1e-4, 0.02)
        )
        return {
            "Torch.neg.0.forward": forward([tensor(dtype="torch.bfloat16")], [taken]),
            "Torch.clone.0.forward": forward([taken], [passed]),
            "Torch.matmul.0.forward": forward([passed, passed], [given]),
        }

    assert roots_of(tmp_path, run(1.0), run(0.0)) == roots


@pytest.mark.parametrize(("given", "is_born"), [(1.0, True), (math.nan, False)])
def test_nan_that_was_born_where_nothing_could_be_checked_is_said(
    tmp_path: Path, given: float, is_born: bool
) -> None:
    key = "Torch.unknown.0.forward"
    records = {
        "Torch.neg.0.forward": forward([tensor(given)], [tensor(given)]),
        key: forward([tensor(given)], [tensor(math.nan)]),
        "Torch.other.0.forward": forward([tensor(math.nan)], [tensor(math.nan)]),
    }
    skipped = dict.fromkeys((key, "Torch.other.0.forward"), OwnError("SKIP", message="no bench"))
    with open_side(write_dump(tmp_path, records)) as side:
        plan = LocationPlan((), {}, (), SearchOptions(), is_replayed=True)
        evidence = MeasuredEvidence({}, skipped)
        located = located_in(side, None, plan, evidence, is_first_step=True)
    born = [(root.key, root.kind) for root in located.roots]
    assert born == ([(key, RootKind.NON_FINITE)] if is_born else [])
    if is_born:
        assert (
            "NaN in float32, born here: all floating inputs were finite" in located.roots[0].message
        )
        assert located.roots[0].message.endswith("no bench")
