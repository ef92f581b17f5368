"""Faults between ranks in real processes: each is named in three ways, and no right run is accused."""

from pathlib import Path

import pytest

from scripts.parallel_faults.evaluate import WAYS, honest_of, judged, place_of
from scripts.parallel_faults.main import capture_layout, without_effect
from scripts.parallel_faults.table import cells

pytestmark = pytest.mark.frameworks

# By layout, what is wrong in it, and the ways in which that is to be named.
CHOSEN = {
    "dp_by_hand": {
        "not_reduced": ("ranks", "same"),
        "same_samples": ("ranks", "same", "one"),
        "other_rate": ("ranks", "same"),
    },
    "tp_by_hand": {
        "no_sum_after_row": ("ranks", "same"),
        "other_start": ("ranks", "same", "one"),
    },
}

# What a search says that knows neither what is wrong nor where.
VAGUE = (
    "1. Optimizer.SGD.0.forward: not captured (step 0, all 2 ranks) at input.0.grads.0"
    " Optimizer.SGD.0.forward.input.0.grads.0 differs by 0.733 of its norm, where what the run gave before"
    " differs by 0: an operator between Functional.layer_norm.1.backward and Optimizer.SGD.0.forward was not"
    " captured, or it comes from outside; gradients that were scaled, clipped, averaged or added to those of"
    " the step before (zero_grad) come about so it reached 48 more records"
)


def test_a_vague_finding_names_no_fault() -> None:
    ways = ((layout, fault, way) for layout, fault in cells() for way in WAYS)
    named = [(layout, fault.name, way) for layout, fault, way in ways
             if place_of(fault, layout, way, [VAGUE])]  # fmt: skip
    assert named == []


def test_what_is_said_of_the_right_run_too_names_nothing() -> None:
    layout, fault = next(each for each in cells(("dp_by_hand",)) if each[1].name == "other_start")
    finding = "1. Functional.layer_norm.3.forward: other weight (step 0) of blocks.1.n2.weight"
    assert place_of(fault, layout, "one", [finding]) == 1
    assert place_of(fault, layout, "one", [finding], idle=[finding]) == 0


def test_a_finding_of_ranks_counts_in_its_own_list() -> None:
    layout, fault = next(each for each in cells(("dp_by_hand",)) if each[1].name == "not_reduced")
    named = "  step 0, dp 0-1: [gradient] blocks.0.n2.weight: rank 1's gradient was not reduced with rank 0's"
    others = [f"  step 0, dp 0-1: [gradient] {name}: rank 1 has another one" for name in "abc"]
    assert place_of(fault, layout, "one", [VAGUE, VAGUE, VAGUE, named]) == 1
    assert place_of(fault, layout, "same", [named, VAGUE]) == 1
    assert place_of(fault, layout, "one", [*others, named]) == 0


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel_faults")
    for layout, faults in CHOSEN.items():
        capture_layout(layout, tuple(faults), folder / "captures", "sketch")
    return folder


@pytest.mark.parametrize("layout", CHOSEN)
def test_each_fault_changes_the_training(captures: Path, layout: str) -> None:
    assert not without_effect(layout, captures / "captures")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", CHOSEN)
def test_each_fault_is_named_as_what_it_is(captures: Path, layout: str, way: str) -> None:
    faults = [name for name, ways in CHOSEN[layout].items() if way in ways]
    found = {each.fault.name: each for each in judged(captures, [layout], faults, [way])}
    assert sorted(found) == sorted(faults)
    assert [name for name, each in found.items() if not each.place] == []


def test_right_runs_are_not_accused(captures: Path) -> None:
    answers = list(honest_of(captures, CHOSEN, WAYS))
    assert {each.command for each in answers} == {"ranks", "locate", "compare"}
    assert [(each.name, each.said.text) for each in answers if each.accused] == []


def test_pairs_between_layouts_are_those_of_the_programs(captures: Path) -> None:
    found = [each.found for each in honest_of(captures, CHOSEN, ["one"]) if each.found]
    assert found
    assert min(each.f1 for each in found) >= 0.99


def test_experts_that_are_spread_are_compared_with_those_of_one_process(tmp_path: Path) -> None:
    faults = ("experts_not_divided", "gather_order", "wrong_slice")
    capture_layout("moe_ep", faults, tmp_path / "captures", "sketch")
    assert {
        each.fault.name: each.place for each in judged(tmp_path, ["moe_ep"], faults, ["one"])
    } == (dict.fromkeys(faults, 1))
    for each in honest_of(tmp_path, ["moe_ep"], ["one"]):
        assert not each.accused, each.said.text
        assert each.found is None or each.found.f1 == 1.0
