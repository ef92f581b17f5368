"""The operator to blame is located on a cluster: the bytes do not depend on who replays its calls."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SLOTS_AND_FILE_SYSTEMS
from dumps import saved

from ray_precheck.commands.locate.located import LocationReport
from ray_precheck.commands.locate.run import locate_captures

pytestmark = pytest.mark.cluster
CALLS, WRONG = 40, 17


def write_capture(folder: Path, *, is_wrong: bool) -> Path:
    """Write a chain of tanh and sine with tensors in files; in one call a sign may be flipped."""
    (folder / "dump_tensor_data").mkdir(parents=True)
    values = np.random.default_rng(3).standard_normal((16, 33)).astype(np.float32)
    data: dict[str, Any] = {}
    for number in range(CALLS):
        name, function = ("tanh", np.tanh) if number % 2 else ("sin", np.sin)
        key = f"Torch.{name}.{number // 2}.forward"
        given, values = values, function(values)
        if is_wrong and number == WRONG:
            values[3, 4] = -values[3, 4]
        data[key] = {"input_args": [], "output": []}
        for part, place, each in (("input_args", "input.0", given), ("output", "output.0", values)):
            data[key][part].append(saved(folder, key, place, each))
    header = {"task": "tensor", "level": "L1", "framework": "pytorch"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("captures")
    return (
        write_capture(folder / "target", is_wrong=True),
        write_capture(folder / "golden", is_wrong=False),
    )


def contents(report: LocationReport) -> list[bytes]:
    tables = ("locate_2*.csv", "locate_calls_*.csv", "locate_values_*.csv")
    return [path.read_bytes() for name in tables for path in report.folder.glob(name)]


@pytest.fixture(scope="module")
def alone(captures: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    report = locate_captures(*captures, out=tmp_path_factory.mktemp("alone"))
    assert not list(report.folder.glob("*.timeline*")), "it was done in this process"
    assert report.places[0].root.key == "Torch.tanh.8.forward"
    found = contents(report)
    assert len(found) == 3
    return found


@SLOTS_AND_FILE_SYSTEMS
def test_on_any_number_of_slots_it_makes_the_bytes_of_one_process(
    captures: tuple[Path, Path],
    alone: list[bytes],
    cluster_address: str,
    tmp_path: Path,
    devices: tuple[int, ...],
    shared_fs: bool,
) -> None:
    report = locate_captures(
        *captures, out=tmp_path, address=cluster_address, devices=devices, shared_fs=shared_fs
    )
    assert list(tmp_path.glob("*timeline*")), "workers did it"
    assert contents(report) == alone
