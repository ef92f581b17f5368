"""The command run_overflow_check: which dump it takes."""

import json
from pathlib import Path

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.unit


def write(folder: Path) -> None:
    values = {"Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0}
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2], **values}
    record = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}
    folder.mkdir(parents=True)
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    data = {"Torch.neg.0.forward": record}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}))


def test_a_folder_of_one_dump_is_that_dump_and_one_of_two_is_to_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "step0" / "proc7")
    words = ["run_overflow_check", "-api_info", str(tmp_path), "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert "The captured results of all 1 calls are finite" in capsys.readouterr().out
    write(tmp_path / "step1" / "proc7")
    assert main(words) == 2
    assert "is a folder of 2 dumps; name one of them" in capsys.readouterr().err
