"""Faults between ranks in real processes: each is named in three ways, and no right run is accused."""

from pathlib import Path

import pytest

from scripts.parallel_faults.evaluate import WAYS, honest_of, judged
from scripts.parallel_faults.main import capture_layout, without_effect

pytestmark = pytest.mark.frameworks

# By layout, what is wrong in it: one fault of each family, and one that needs more than one rank's dump.
CHOSEN = {
    "dp_by_hand": ("not_reduced", "same_samples", "other_rate"),
    "tp_by_hand": ("no_sum_after_row", "other_start"),
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parallel_faults")
    for layout, faults in CHOSEN.items():
        capture_layout(layout, faults, folder / "captures", "statistics")
    return folder


@pytest.mark.parametrize("layout", CHOSEN)
def test_each_fault_changes_the_training(captures: Path, layout: str) -> None:
    assert not without_effect(layout, captures / "captures")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", CHOSEN)
def test_each_fault_is_named_as_what_it_is(captures: Path, layout: str, way: str) -> None:
    found = {each.fault.name: each for each in judged(captures, [layout], CHOSEN[layout], [way])}
    assert set(found) == set(CHOSEN[layout])
    assert [name for name, each in found.items() if not each.place] == []


def test_right_runs_are_not_accused(captures: Path) -> None:
    answers = list(honest_of(captures, CHOSEN, WAYS))
    assert {each.command for each in answers} == {"ranks", "locate", "compare"}
    assert [(each.name, each.said.text) for each in answers if each.accused] == []


def test_pairs_between_layouts_are_those_of_the_programs(captures: Path) -> None:
    found = [each.found for each in honest_of(captures, CHOSEN, ["one"]) if each.found]
    assert found
    assert min(each.f1 for each in found) >= 0.99
