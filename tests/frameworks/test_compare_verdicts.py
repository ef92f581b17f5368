"""The calibration of compare's standards plants faults where it says, and its honest runs differ."""

from pathlib import Path

import pytest
import torch

from ray_precheck.capture import Capture
from scripts.honest.programs import BiasesWithoutGradient
from scripts.locate_faults.compare_verdicts import (
    AUTO,
    AUTO_NOISE,
    FAULTS,
    FIRST,
    NONE,
    OTHER_SUMS,
    PLAIN,
    TARGET,
    WARNED,
    MlpBlocks,
    WrongOperator,
    _judged,
    _said,
    captured_network,
    first_moved_record,
)

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


def _trained(folder: Path, *, way: int, rate: float = 0.01, key_bias: float = 0.0) -> Path:
    """Capture three updates by AdamW; of the ways one has a thread more and no oneDNN."""
    torch.manual_seed(0)
    model, threads = BiasesWithoutGradient(), torch.get_num_threads()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    try:
        torch.set_num_threads(1 + way)
        with (
            torch.backends.mkldnn.flags(enabled=not way),
            Capture(folder, task="tensor", step_by="manual", framework="pytorch"),
        ):
            for number in range(3):
                torch.manual_seed(number)
                x, labels = torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), labels).backward()
                optimizer.step()
                with torch.no_grad():
                    model.key.bias += key_bias
    finally:
        torch.set_num_threads(threads)
    return next(folder.glob("step0/*/dump.json"))


@pytest.mark.filterwarnings("ignore")
def test_updates_of_nothing_but_rounding_are_no_errors(tmp_path: Path) -> None:
    honest, golden = (_trained(tmp_path / str(way), way=way) for way in (1, 0))
    moved = _trained(tmp_path / "moved", way=1, key_bias=0.5)
    for statistics in (False, True):
        found = _judged(honest, golden, golden, statistics)[AUTO]
        assert [key for key, result in found.items() if result == "error"] == []
        assert "warning" in found.values()
        # Steps of the learning rate explain less.
        found = _judged(moved, golden, golden, statistics)[AUTO]
        first = next(key for key, result in found.items() if result == "error")
        assert first.startswith("Tensor.__iadd__") or "linear.4" in first
