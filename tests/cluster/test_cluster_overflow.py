"""Dumps are searched for births on the workers of a cluster, and calls that overflowed are replayed there."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.commands.overflow.replay import replay_overflows
from ray_precheck.commands.overflow.run import check_overflow
from ray_precheck.replay.config import RunConfig
from ray_precheck.running import run

pytestmark = pytest.mark.cluster


def write_dumps(folder: Path) -> None:
    """Write four dumps, of which two bear an infinity; one cannot be read."""

    def tensor(top: float) -> dict[str, Any]:
        statistics = {"Max": top, "Min": 0.0, "Mean": top, "Norm": top}
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], **statistics}

    for number in range(4):
        place = folder / "step0" / f"rank{number}"
        place.mkdir(parents=True)
        output = tensor(float("inf") if number % 2 else 1.0)
        record = {"input_args": [tensor(800.0)], "input_kwargs": {}, "output": [output]}
        header = {"task": "statistics", "level": "L1", "framework": "pytorch"}
        data = {"dump_data_dir": None, "data": {"Torch.exp.0.forward": record}}
        (place / "dump.json").write_text(json.dumps({**header, **data}))
    (folder / "step0" / "rank2" / "dump.json").write_text("{")


@pytest.mark.parametrize("shared_fs", [True, False])
def test_workers_write_what_the_own_process_writes(
    tmp_path: Path, cluster_address: str, monkeypatch: pytest.MonkeyPatch, shared_fs: bool
) -> None:
    write_dumps(tmp_path / "dumps")
    here = check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "here"))
    assert not here.files.timeline.exists()  # no worker was at work
    monkeypatch.setattr(run, "START_OF_RAY_S", 0.0)
    there = check_overflow(
        OverflowConfig(
            dump=tmp_path / "dumps",
            out=tmp_path / "there",
            address=cluster_address,
            devices=(0, 1),
            shared_fs=shared_fs,
        )
    )
    assert there.files.timeline.exists()
    for kind in ("result", "details"):
        ours, theirs = getattr(here.files, kind), getattr(there.files, kind)
        assert ours.read_bytes() == theirs.read_bytes()
    assert [each.births for each in there.dumps] == [0, 1, 0, 1]


# The command on workers, whatever the size of the dumps, which waits when it has the first rows.
ON_WORKERS = """
import sys, time
from ray_precheck.running import run
from ray_precheck.cli import main
from ray_precheck.runtime.progress import Progress

Progress.add = lambda self, finished: time.sleep(600)
run.START_OF_RAY_S = 0.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_search_on_workers_that_was_killed_goes_on_to_the_same_bytes(
    tmp_path: Path, cluster_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, dumps = 300, tmp_path / "dumps"
    write_dumps(tmp_path / "some")
    for rank in range(number):
        place = dumps / "step0" / f"rank{rank}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(tmp_path / "some" / "step0" / f"rank{rank % 4}", place)
    whole = check_overflow(OverflowConfig(dump=dumps, out=tmp_path / "whole"))
    out = tmp_path / "out"
    words = ["overflow_check", str(dumps), "-o", str(out), "-d", "0", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_WORKERS, *words, "--address", cluster_address],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    written = 0
    while not written:
        assert process.poll() is None
        written = sum(len(path.read_bytes()) > 200 for path in out.glob("overflow_dumps_*.csv"))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (table,) = out.glob("overflow_dumps_*.csv")
    assert table.read_bytes().count(b"\n") - 1 < number
    monkeypatch.setattr(run, "START_OF_RAY_S", 0.0)
    settings: dict[str, Any] = {"address": cluster_address, "devices": (0, 1)}
    again = check_overflow(OverflowConfig(dump=dumps, resume_csv=out, **settings))
    assert again.completed
    for kind in ("result", "details"):
        own, other = getattr(again.files, kind), getattr(whole.files, kind)
        assert own.read_bytes() == other.read_bytes()


def test_calls_that_overflowed_are_replayed_on_workers(
    tmp_path: Path, cluster_address: str
) -> None:
    write_dumps(tmp_path / "dumps")
    dump = tmp_path / "dumps" / "step0" / "rank1" / "dump.json"
    report = replay_overflows(RunConfig(dump=dump, out=tmp_path / "out", address=cluster_address))
    assert report.completed
    (row,) = report.rows
    assert row.name == "Torch.exp.0"
    assert row.message.startswith("forward: normal overflow")
