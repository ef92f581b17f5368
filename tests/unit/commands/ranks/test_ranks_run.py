"""The command `ranks`, from dumps to files, exit codes and a view."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli.command_line import main
from ray_precheck.commands.ranks.closing import ranks_exit_code
from ray_precheck.commands.ranks.job import ranks_job
from ray_precheck.commands.ranks.report import view
from ray_precheck.commands.ranks.run import check_ranks
from ray_precheck.errors import UsageError
from ray_precheck.formats.conversion import find_captures
from ray_precheck.running.views import found_run
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.view import Tone


def write_ranks(
    folder: Path, rates: tuple[float, ...], files: Sequence[Array] | None = None
) -> Path:
    """Write the dumps of ranks whose optimizers have these learning rates; returns their folder. `files` are
    the values of the parameter of each rank, if there are files of tensors."""
    for rank, rate in enumerate(rates):
        tensor: dict[str, Any] = {
            "type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "requires_grad": True,
            "Max": 1.5, "Min": -0.5, "Mean": 0.25, "Norm": 2.0,
        }  # fmt: skip
        group = {
            "lr": {"type": "float", "value": rate},
            "names": [{"type": "str", "value": "a.weight"}], "params": [tensor], "grads": [tensor],
        }  # fmt: skip
        moved = {**tensor, "Max": 1.5 - rate, "data_name": None}
        record = {"input_args": [group], "input_kwargs": {}, "output": [{"params": [moved]}]}
        path = folder / "step0" / f"rank{rank}" / "dump.json"
        path.parent.mkdir(parents=True)
        if files is not None:
            tensor["data_name"] = "Optimizer.SGD.0.forward.input.0.npy"
            (path.parent / "dump_tensor_data").mkdir()
            np.save(path.parent / "dump_tensor_data" / tensor["data_name"], files[rank])
        header = {"task": "statistics", "level": "L1", "framework": "pytorch"}
        data = {"Optimizer.SGD.0.forward": record}
        path.write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("rates", "code"), [((0.1, 0.1), 0), ((0.1, 0.2), 1), ((0.1,), 4)])
def test_the_exit_code_says_what_was_found(
    tmp_path: Path, rates: tuple[float, ...], code: int
) -> None:
    dumps = write_ranks(tmp_path / "dumps", rates)
    assert main(["ranks", str(dumps), "-o", str(tmp_path / "out")]) == code


def test_findings_stand_in_the_files_in_the_place_of_summaries(tmp_path: Path) -> None:
    dumps = write_ranks(tmp_path / "dumps", (0.1, 0.2, 0.1))
    report = check_ranks(dumps, out=tmp_path / "out")
    assert report.completed
    assert [(each.name, each.ranks) for each in report.findings] == [("lr", "1")]
    assert report.groups == ("dp 0, 1, 2: agreement of 1 of 1 parameters",)
    rows = report.files.details.read_text(encoding="utf-8-sig").splitlines()
    assert len(rows) == 2
    assert "summary" not in rows[1]


def test_files_of_tensors_tell_what_four_statistics_do_not(tmp_path: Path) -> None:
    values = np.array([1.5, -0.5, 0.25, -0.25], np.float32)
    other = values[[0, 1, 3, 2]]
    dumps = write_ranks(tmp_path / "turned", (0.1, 0.1, 0.1), (values, other, values))
    report = check_ranks(dumps, out=tmp_path / "out", layout="dp=3")
    assert [(each.name, each.ranks, each.rests_on) for each in report.findings] == [
        ("a.weight", "1", "tensors")
    ]
    assert "equalities of ranks 0-2 rest on tensors where they have a name" in report.checked[-1]
    same = write_ranks(tmp_path / "same", (0.1, 0.1), (values, np.array(values)))
    assert check_ranks(same, out=tmp_path / "out", layout="dp=2").findings == ()
    # Other machines of a cluster need not have the files.
    found = find_captures(dumps).dumps
    for shares in (False, True):
        job = ranks_job(found, shared_fs=shares, is_alone=False)
        assert {job.payload(task).reads_tensors for task in job.tasks(set())} == {shares}


def test_a_file_of_a_tensor_that_is_cut_leaves_its_rank_out(tmp_path: Path) -> None:
    values = np.array([1.5, -0.5, 0.25, -0.25], np.float32)
    dumps = write_ranks(tmp_path / "dumps", (0.1, 0.1, 0.1), (values, values, values))
    (file,) = (dumps / "step0" / "rank1" / "dump_tensor_data").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    report = check_ranks(dumps, out=tmp_path / "out")
    (left_out,) = (each for each in report.dumps if each.records is None)
    assert "the file of a tensor cannot be read" in left_out.message
    assert report.findings == ()
    assert ranks_exit_code(report) == view([found_run(report.files.details)]).exit_code == 2


def test_the_view_has_a_card_for_each_finding(tmp_path: Path) -> None:
    dumps = write_ranks(tmp_path / "dumps", (0.1, 0.2))
    report = check_ranks(dumps, out=tmp_path / "out")
    seen = view([found_run(report.files.details)])
    assert (seen.tone, seen.exit_code) == (Tone.ERROR, 1)
    assert [card.name for card in seen.cards] == ["lr"]
    assert any("four statistics" in note for note in seen.notes)


def test_a_layout_that_does_not_fit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    dumps = write_ranks(tmp_path / "dumps", (0.1, 0.1, 0.1))
    with pytest.raises(UsageError, match="capture has rank 2"):
        check_ranks(dumps, out=tmp_path / "out", layout="dp=2")
    assert not (tmp_path / "out").exists()


def test_folders_of_processes_are_no_ranks(tmp_path: Path) -> None:
    dumps = write_ranks(tmp_path / "dumps", (0.1, 0.1, 0.3))
    (dumps / "step0" / "rank2").rename(dumps / "step0" / "proc4711")
    report = check_ranks(dumps, out=tmp_path / "out")
    assert report.findings == ()
    assert report.not_checked[0].startswith("step0/proc4711: ")
    for rank in range(2):
        (dumps / "step0" / f"rank{rank}").rename(dumps / "step0" / f"proc{rank}")
    with pytest.raises(UsageError, match="processes without a rank"):
        check_ranks(dumps, out=tmp_path / "out")
