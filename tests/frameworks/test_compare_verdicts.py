"""The calibration of compare's standards plants faults where it says, and its honest runs differ."""

from pathlib import Path

import pytest
import torch

from scripts.compare_faults import (
    FAULTS,
    OTHER_SUMS,
    PLAIN,
    TARGET,
    MlpBlocks,
    WrongOperator,
    captured_network,
    first_moved_record,
)
from scripts.compare_verdicts import AUTO, AUTO_NOISE, FIRST, NONE, WARNED, _judged, _said

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the dumps of one network: honest ones, and one with a fault in the fourth operator."""
    folder = tmp_path_factory.mktemp("captures")
    ways = {"golden": PLAIN, "noise": OTHER_SUMS, "target": TARGET}
    found = {
        name: captured_network(MlpBlocks, torch.float32, way, folder / name).dump
        for name, way in ways.items()
    }
    fault = WrongOperator(3, FAULTS["1.1"])
    found["fault"] = captured_network(
        MlpBlocks, torch.float32, TARGET, folder / "fault", fault
    ).dump
    return found


def test_a_fault_is_in_the_record_of_its_operator(dumps: dict[str, Path]) -> None:
    culprit, moved = first_moved_record(dumps["fault"], dumps["target"])
    assert culprit == "Functional.linear.1.forward"
    assert moved == pytest.approx(0.1, rel=0.01)


def test_honest_runs_differ_by_rounding(dumps: dict[str, Path]) -> None:
    for name in ("noise", "target"):
        culprit, moved = first_moved_record(dumps[name], dumps["golden"])
        assert culprit
        assert 0 < moved < 1e-6


def test_auto_names_the_fault_and_no_honest_record(dumps: dict[str, Path]) -> None:
    sides = dumps["golden"], dumps["noise"]
    for target, expected in (("fault", FIRST), ("target", NONE)):
        found = _judged(dumps[target], *sides, False)
        for way in (AUTO, AUTO_NOISE):
            assert _said(found[way], "Functional.linear.1.forward") == expected


def test_auto_names_a_slightly_wrong_gradient(dumps: dict[str, Path], tmp_path: Path) -> None:
    fault = WrongOperator(20, FAULTS["1 + 1e-4"])
    target = captured_network(MlpBlocks, torch.float32, TARGET, tmp_path, fault).dump
    culprit, _ = first_moved_record(target, dumps["target"])
    assert culprit.endswith(".backward")
    found = _judged(target, dumps["golden"], dumps["noise"], False)
    assert _said(found[AUTO], culprit) == FIRST


def test_what_is_said_is_that_of_the_first_error() -> None:
    assert _said({"a": "pass", "b": "error", "c": "error"}, "b") == FIRST
    assert _said({"a": "warning", "b": "pass"}, "a") == WARNED
    assert _said({"a": "pass", "b": "warning"}, "a") == NONE
