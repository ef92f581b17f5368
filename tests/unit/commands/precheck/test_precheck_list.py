"""--list and --version: what they print, and that they start nothing."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import ray_precheck
from ray_precheck.cli import NOTHING_CHECKED, PASSED, UNUSABLE, main
from ray_precheck.options.commands import installed_versions

pytestmark = pytest.mark.unit

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1, "Min": 0}
HUGE = {**TENSOR, "shape": [2**20, 2**20]}


def record(*tensors: object) -> dict[str, object]:
    """A forward record of a call with these arguments."""
    return {"input_args": list(tensors), "input_kwargs": {}, "output": [TENSOR]}


DATA = {
    "Torch.sin.0.forward": record(TENSOR),
    "Torch.sin.0.backward": {"input": [TENSOR], "output": [TENSOR]},
    "Torch.sin.1.forward": record(TENSOR),
    "Torch.cos.0.forward": record(HUGE),
    "Torch.load.0.forward": record(TENSOR),
    "Torch.svd_lowrank.0.forward": record(TENSOR),
    "Torch.tan.0.forward": {"input_args": 3},
    "Distributed.all_reduce.0.forward": record(TENSOR),
}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump with one call of each kind that can be told apart without running it."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": DATA}))
    return path


def listed(dump: Path, *options: str) -> list[str]:
    """The command that lists the calls of a dump."""
    out = str(dump.parent / "out")
    return ["run_ut", "-api_info", str(dump), "-o", out, "--max-memory", "1", "--list", *options]


def test_every_call_is_listed_with_its_cost_or_the_reason(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(listed(dump)) == PASSED
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Torch.sin.0  forward, backward, about 0.00")
    assert lines[1].startswith("Torch.sin.1  forward, about 0.00")
    assert lines[2].startswith("Torch.cos.0  SKIP: it needs about ")
    assert lines[3].startswith("Torch.load.0  SKIP: Torch.load is not an operator of torch")
    assert lines[4].startswith("Torch.svd_lowrank.0  SKIP: it is a randomised algorithm")
    assert lines[5].startswith("Torch.tan.0  SKIP: ")
    assert lines[6].startswith("Distributed.all_reduce.0  SKIP: a collective operator")
    assert lines[7].startswith("2 of 7 calls would be checked, about 0.00")
    assert lines[7].endswith(" s on one CPU core; 5 would be SKIP")


def test_what_is_not_selected_or_alike_or_done_is_told(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(listed(dump, "-k", "sin", "-f")) == PASSED
    lines = capsys.readouterr().out.splitlines()
    assert "Torch.sin.1  SKIP: alike" not in lines[1]  # It has no backward record.
    assert "2 of 7 calls would be checked" in lines[2]
    assert "; 5 are not selected" in lines[2]
    result = dump.parent / "accuracy_checking_result_20260101000000.csv"
    result.write_text(
        "API Name,Forward Test Success,Backward Test Success,Message\n"
        "Torch.sin.0,SKIP,SKIP,\nTorch.sin.1,SKIP,,\n"
    )
    before = result.read_bytes()
    assert main(listed(dump, "-k", "sin", "-csv_path", str(result))) == PASSED
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["  Torch.sin.0  done already", "  Torch.sin.1  done already"]
    assert "0 of 7 calls would be checked" in lines[2]
    assert result.read_bytes() == before


def test_a_folder_of_ranks_is_listed_rank_by_rank(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in ("rank0", "rank1"):
        (dump.parent / "step0" / rank).mkdir(parents=True)
    (dump.parent / "step0" / "rank0" / "dump.json").write_bytes(dump.read_bytes())
    (dump.parent / "step0" / "rank1" / "dump.json").write_text("{")
    assert main(listed(dump.parent / "step0")) == PASSED
    printed = capsys.readouterr().out
    assert printed.startswith("step0/rank0:\n  Torch.sin.0  forward")
    assert "step0/rank1:\nnot checked: " in printed


def test_a_list_of_calls_of_which_none_can_be_checked_is_exit_code_4(dump: Path) -> None:
    assert main(listed(dump, "-k", "all_reduce")) == NOTHING_CHECKED


def test_a_list_makes_no_file_and_loads_no_ray(dump: Path) -> None:
    before = sorted(dump.parent.iterdir())
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from ray_precheck.cli import main\n"
            f"print(main({listed(dump)!r}))\n"
            "print(sorted({'ray', 'mindspore', 'torch_npu'} & set(sys.modules)))\n",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr
    assert sorted(dump.parent.iterdir()) == before


def test_a_list_of_what_is_wrong_is_exit_code_2(dump: Path) -> None:
    assert main(listed(dump, "-k", "sine")) == UNUSABLE
    assert main(listed(dump.parent / "none.json")) == UNUSABLE
    assert main(listed(dump, "--seed", "-1")) == UNUSABLE


@pytest.mark.parametrize("line", ["--version", "-V", "run_ut --version"])
def test_the_versions_are_printed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    assert left.value.code == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["ray_precheck"] == ray_precheck.__version__
    assert lines["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert lines["ray"] == metadata.version("ray")
    assert {"torch", "mindspore", "torch_npu"} <= set(lines)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert installed_versions()["torch"] == "not installed"
