"""Kill comparisons of two captures at random moments with `kill -9`, and go on with them.

    python -m scripts.compare_kills [--kills N] [--seed S] [--calls N]

Two captures of many small tensors are compared by `ray-precheck compare`, which is killed at a random moment
of its life and gone on with, until a run comes to its end; that is one story, and stories are told until N
kills have hit a running comparison. The files of each story must have the bytes of an undisturbed run.
Prints how far the killed runs were; the exit code is 1 if bytes differ.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_LIMIT_S = 300.0
_ELEMENTS = 40_000


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
        key = f"Mint.add.{number}.forward"
        np.save(tensors / f"{key}.output.0.npy", values)
        element = {
            "type": "mindspore.Tensor",
            "dtype": "Float32",
            "shape": [_ELEMENTS],
            "Max": float(values.max()),
            "Min": float(values.min()),
            "Mean": float(values.mean()),
            "Norm": float(np.linalg.norm(values)),
            "data_name": f"{key}.output.0.npy",
        }
        data[key] = {"input_args": [], "output": [element]}
    header = {"task": "tensor", "level": "L1", "framework": "mindspore"}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    return folder


def tell_stories(folder: Path, kills: int, seed: int, calls: int) -> Kills:
    """Compare until `kills` runs were killed; `folder` is for all files."""
    target = write_capture(folder / "target", calls, 1.001)
    golden = write_capture(folder / "golden", calls, 1.0)
    words = ["-tp", str(target), "-gp", str(golden), "--standard", "auto"]
    began = time.monotonic()
    _run([*words, "-o", str(folder / "whole")], _LIMIT_S)
    longest_s = time.monotonic() - began
    expected = _files(folder / "whole")
    found, choose = Kills(), random.Random(seed)
    while found.kills < kills:
        out = folder / f"story{found.stories}"
        is_over = False
        while not is_over:
            goes_on = ["-csv_path", str(out)] if any(out.glob("compare_calls_*.csv")) else []
            delay_s = choose.uniform(0.0, 1.1 * longest_s)
            is_over = _run([*words, "-o", str(out), *goes_on], delay_s)
            if not is_over:
                found.kills += 1
                found.states[_state(out, calls)] += 1
        found.stories += 1
        if _files(out) != expected:
            found.different.append(out.name)
    return found


def _run(words: Sequence[str], limit_s: float) -> bool:
    """Run a comparison and kill it after a time; returns whether it had come to its end."""
    command = [sys.executable, "-m", "ray_precheck", "compare", *words]
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


def _files(out: Path) -> list[bytes]:
    """Return the contents of both tables of the newest run."""
    return [
        max(out.glob(f"compare_{kind}_*.csv")).read_bytes()
        if list(out.glob(f"compare_{kind}_*.csv"))
        else b""
        for kind in ("calls", "result")
    ]


def _state(out: Path, calls: int) -> str:
    """Return how far a killed run was."""
    tables = sorted(out.glob("compare_calls_*.csv"))
    if not tables:
        return "before a table was made"
    rows = tables[-1].read_bytes().count(b"\n") - 1
    if rows <= 0:
        return "before the first row"
    return "in the middle" if rows < calls else "behind the last row"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=6000)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = tell_stories(Path(folder), options.kills, options.seed, options.calls)
    print(f"{found.kills} kills in {found.stories} comparisons")
    for state, count in sorted(found.states.items()):
        print(f"  {count:5} {state}")
    print(f"{len(found.different)} comparisons have other bytes than an undisturbed one")
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
