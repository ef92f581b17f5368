"""Kills comparisons or searches at random moments with `kill -9`, and goes on with them.

Two captures of many small tensors are compared by `ray-precheck compare`, or dumps of many ranks are
searched by `ray-precheck overflow_check`, or a chain of calls of which one is wrong by `ray-precheck locate`.
The command is killed at a random moment of its life and gone on with, until a run comes to its end; that is
one story, and stories are told until so many kills have hit a running command. The files of each story must
have the bytes of an undisturbed run. Used by `test_killed_commands`.
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_LIMIT_S = 300.0
_ELEMENTS = 40_000
_RECORDS = 3000


@dataclass(frozen=True, slots=True)
class Work:
    """A command to kill: its words without `-o`, the patterns of the names of its tables, of which the first
    has a row for each piece, and how many pieces there are."""

    words: tuple[str, ...]
    tables: tuple[str, ...]
    pieces: int


@dataclass(slots=True)
class Kills:
    """What kills have found: how far the runs were, and the stories whose bytes differ."""

    kills: int = 0
    stories: int = 0
    states: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)


def write_capture(folder: Path, calls: int, scale: float) -> Path:
    """Write a capture of `calls` calls with their tensors in files; returns its folder."""
    tensors = folder / "dump_tensor_data"
    tensors.mkdir(parents=True)
    values = np.random.default_rng(5).standard_normal(_ELEMENTS).astype(np.float32) * np.float32(
        scale
    )
    data: dict[str, Any] = {}
    for number in range(calls):
        key = f"Torch.add.{number}.forward"
        data[key] = {"input_args": [], "output": [_saved(tensors, f"{key}.output.0.npy", values)]}
    return _written(folder, "tensor", data)


def comparison(folder: Path, calls: int) -> Work:
    """Write two captures; return their comparison."""
    target = write_capture(folder / "target", calls, 1.001)
    golden = write_capture(folder / "golden", calls, 1.0)
    words = ("compare", "-tp", str(target), "-gp", str(golden), "--standard", "auto")
    return Work(words, ("compare_calls_*.csv", "compare_result_*.csv"), calls)


def overflow_check(folder: Path, dumps: int) -> Work:
    """Write the dumps of so many ranks, in each of which an infinity is born and passed on; return their
    search."""
    finite = {"Max": 800.0, "Min": 0.0, "Mean": 400.0, "Norm": 1000.0}
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8]}
    bad = tensor | finite | {"Max": math.inf, "Mean": math.inf, "Norm": math.inf}
    for rank in range(dumps):
        data = {
            f"Torch.neg.{number}.forward": {
                "input_args": [bad if number else tensor | finite],
                "output": [bad],
            }
            for number in range(_RECORDS)
        }
        place = folder / "dumps" / "step0" / f"rank{rank}"
        place.mkdir(parents=True)
        _written(place, "statistics", data)
    words = ("overflow_check", str(folder / "dumps"))
    return Work(words, ("overflow_dumps_*.csv", "overflow_check_*.csv"), dumps)


def location(folder: Path, calls: int) -> Work:
    """Write a chain of calls of two runs, in one of which a call is wrong; return the search for it."""
    for name, wrong in (("target", calls // 2), ("golden", -1)):
        tensors = folder / name / "dump_tensor_data"
        tensors.mkdir(parents=True)
        values = np.random.default_rng(5).standard_normal((16, 32)).astype(np.float32)
        data: dict[str, Any] = {}
        for number in range(calls):
            key = f"Torch.sin.{number}.forward"
            data[key] = {"input_args": [_saved(tensors, f"{key}.input.0.npy", values)]}
            values = np.sin(values)
            if number == wrong:
                values[3] *= np.float32(1.01)
            data[key]["output"] = [_saved(tensors, f"{key}.output.0.npy", values)]
        _written(folder / name, "tensor", data)
    words = ("locate", "-tp", str(folder / "target"), "-gp", str(folder / "golden"))
    tables = ("locate_calls_*.csv", "locate_values_*.csv", "locate_[0-9]*.csv")
    return Work(words, tables, calls)


def _written(folder: Path, task: str, data: dict[str, Any]) -> Path:
    """Write a dump.json into a folder; return the folder."""
    dump = {"task": task, "level": "L1", "framework": "pytorch", "data": data}
    (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    return folder


def _saved(folder: Path, name: str, values: Any) -> dict[str, Any]:
    """Save a tensor; return its element of the dump."""
    np.save(folder / name, values)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(values.shape),
        "Max": float(values.max()),
        "Min": float(values.min()),
        "Mean": float(values.mean()),
        "Norm": float(np.linalg.norm(values)),
        "data_name": name,
    }


def tell_stories(folder: Path, kills: int, seed: int, work: Work) -> Kills:
    """Do the work until `kills` runs were killed; `folder` is for all files."""
    began = time.monotonic()
    _run([*work.words, "-o", str(folder / "whole")], _LIMIT_S)
    longest_s = time.monotonic() - began
    expected = _files(folder / "whole", work)
    found, choose = Kills(), random.Random(seed)
    while found.kills < kills:
        out = folder / f"story{found.stories}"
        is_over = False
        while not is_over:
            goes_on = ["-csv_path", str(out)] if any(out.glob(work.tables[0])) else []
            delay_s = choose.uniform(0.0, 1.1 * longest_s)
            is_over = _run([*work.words, "-o", str(out), *goes_on], delay_s)
            if not is_over:
                found.kills += 1
                found.states[_state(out, work)] += 1
        found.stories += 1
        if _files(out, work) != expected:
            found.different.append(out.name)
    return found


def _run(words: Sequence[str], limit_s: float) -> bool:
    """Run a command and kill it after a time; returns whether it had come to its end."""
    command = [sys.executable, "-m", "ray_precheck", *words]
    # The command's guardian lives as long as its child: both are of one group.
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    if process.returncode not in (0, 1):
        raise RuntimeError(errors.decode(errors="replace").strip().splitlines()[-1])
    return True


def _files(out: Path, work: Work) -> list[bytes]:
    """Return the contents of the tables of the newest run."""
    newest = [max(out.glob(table), default=None) for table in work.tables]
    return [path.read_bytes() if path is not None else b"" for path in newest]


def _state(out: Path, work: Work) -> str:
    """Return how far a killed run was."""
    tables = sorted(out.glob(work.tables[0]))
    if not tables:
        return "before a table was made"
    rows = tables[-1].read_bytes().count(b"\n") - 1
    if rows <= 0:
        return "before the first row"
    return "in the middle" if rows < work.pieces else "behind the last row"
