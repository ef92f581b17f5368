"""Two captures are compared on a cluster: the bytes do not depend on who does it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SLOTS_AND_FILE_SYSTEMS
from dumps import saved
from processes import own_processes

from ray_precheck.commands.compare.run import ComparisonReport, compare_captures

pytestmark = pytest.mark.cluster
CALLS = 40


def write_capture(folder: Path, scale: float) -> Path:
    """Write calls of one operator with tensors in files, each `scale` times the same random one."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    random = np.random.default_rng(3)
    data: dict[str, Any] = {}
    for number in range(CALLS):
        key = f"Mint.add.{number}.forward"
        record: dict[str, list[Any]] = {"input_args": [], "output": []}
        for part, name in (("input_args", "input.0"), ("output", "output.0")):
            values = (random.standard_normal((32, 257)) * scale).astype(np.float32)
            kind = {"type": "mindspore.Tensor", "dtype": "Float32"}
            record[part].append(saved(folder, key, name, values, **kind))
        data[key] = record
    header = {"task": "tensor", "level": "L1", "framework": "mindspore"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("captures")
    return write_capture(folder / "target", 1.01), write_capture(folder / "golden", 1.0)


def compared(captures: tuple[Path, Path], out: Path, **options: Any) -> ComparisonReport:
    (report,) = compare_captures(*captures, out=out, standard="auto", **options).reports
    return report


def contents(report: ComparisonReport) -> tuple[bytes, bytes]:
    return report.files.result.read_bytes(), report.files.details.read_bytes()


@pytest.fixture(scope="module")
def alone(captures: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    report = compared(captures, tmp_path_factory.mktemp("alone"))
    assert not report.files.timeline.exists(), "it was done in this process"
    assert report.summary.results == {"warning": CALLS}
    return contents(report)


@SLOTS_AND_FILE_SYSTEMS
def test_on_any_number_of_slots_it_makes_the_bytes_of_one_process(
    captures: tuple[Path, Path],
    alone: Any,
    cluster_address: str,
    tmp_path: Path,
    devices: tuple[int, ...],
    shared_fs: bool,
) -> None:
    report = compared(
        captures, tmp_path, address=cluster_address, devices=devices, shared_fs=shared_fs
    )
    assert report.files.timeline.exists(), "workers did it"
    assert contents(report) == alone


def test_a_worker_that_is_killed_costs_no_row(
    captures: tuple[Path, Path],
    alone: Any,
    cluster_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []

    def kill_one(*arguments: Any) -> None:
        if not killed and (workers := own_processes("ray_precheck.runtime.workers")):
            killed.append(workers[0].pid)
            workers[0].kill()

    from ray_precheck.runtime.progress import Progress

    monkeypatch.setattr(Progress, "add", kill_one)
    report = compared(captures, tmp_path, address=cluster_address, devices=(0, 1))
    assert killed
    assert contents(report) == alone
