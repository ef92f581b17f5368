"""Measure how much of the devices' time a real run uses: real Ray, driver, scheduler, workers, check
processes and writer; only the check itself is pretended, by scripts/speed/pretend, and sleeps.

    python -m scripts.speed.efficiency [--devices 8 16] [--costs equal heavy] [--seconds 20] [--repeats 3]

What is printed for each run:

- efficiency: the seconds that the checks were asked to sleep / (wall x devices), the wall once from
  the first record's begin to the last one's end, and once to the moment when both files were
  complete and in order. Ray's start and that of the workers are left out: all devices are ready
  before any begins.
- bare: the same for as many processes that only sleep, without Ray and without this package, right
  after: what this machine takes by itself, which a run cannot win back.
- over the bound: how much longer the wall is than max(total / devices, longest), below which no
  schedule can come.

The times are in the dump: the sleep is a keyword argument of each call, and the shape is such that
the planner's estimate is that of the workload. `equal` are calls of 20 ms; `heavy` are drawn from
a capture, 1 % of them scaled up until they take half of the time, with estimates that are off by
30 %, and scaled to the same mean.

Ray has its workers give way to every other process of the machine (nice 15), so on a busy one this
measures the others. `nice -n -15 python -m scripts.speed.efficiency --niceness 0` puts the whole run before
them.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.measuring import ROOT, machine, markdown_table
from scripts.simulate.costs import LARGE_S, Workload, draw_workload

PRETEND = Path(__file__).parent / "pretend"
# Of replay/planner.py: what a call without a backward record is estimated at, and each element.
PER_CALL_S = 1.2e-3
PER_ELEMENT_S = 60e-9
# What Ray's workers are started with; of Ray's own configuration, hence its spelling.
NICENESS = "RAY_worker_niceness"
COSTS = {"equal": "20ms", "heavy": "heavy20ms"}


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """What a device did, in seconds since the epoch."""

    device: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run: its spans, what the checks were asked to sleep, and when the files were complete."""

    devices: int
    spans: Sequence[DeviceSpan]
    asked_s: Sequence[float]
    complete_s: float

    @property
    def begin_s(self) -> float:
        """When the first record began."""
        return min(span.begin_s for span in self.spans)

    @property
    def wall_s(self) -> float:
        """From the first record's begin to the last one's end."""
        return max(span.end_s for span in self.spans) - self.begin_s

    @property
    def loop_s(self) -> float:
        """From the first record's begin to the complete files."""
        return self.complete_s - self.begin_s

    @property
    def efficiency(self) -> float:
        """The share of the devices' time, up to the last record's end, that checks slept."""
        return sum(self.asked_s) / (self.wall_s * self.devices)

    @property
    def loop_efficiency(self) -> float:
        """The same up to the complete files."""
        return sum(self.asked_s) / (self.loop_s * self.devices)

    @property
    def over_bound(self) -> float:
        """How much longer the wall is than the least there can be, as a share of that."""
        return self.wall_s / max(sum(self.asked_s) / self.devices, *self.asked_s) - 1

    @property
    def losses(self) -> dict[str, float]:
        """Where the rest went, as shares of the wall and the devices.

        `begin`: before a device's first record; `end`: after its last one; `between`: gaps between
        records of one device; `slept`: longer than asked for, as the kernel wakes a sleeper late.
        """
        rows: dict[str, list[DeviceSpan]] = defaultdict(list)
        for span in self.spans:
            rows[span.device].append(span)
        end_s = self.begin_s + self.wall_s
        busy_s = sum(span.end_s - span.begin_s for span in self.spans)
        begins = sum(min(s.begin_s for s in row) - self.begin_s for row in rows.values())
        ends = sum(end_s - max(s.end_s for s in row) for row in rows.values())
        whole_s = self.wall_s * self.devices
        gaps_s = whole_s - busy_s - begins - ends - (self.devices - len(rows)) * self.wall_s
        parts = {
            "begin": begins,
            "end": ends,
            "between": gaps_s,
            "slept": busy_s - sum(self.asked_s),
        }
        return {name: seconds / whole_s for name, seconds in parts.items()}


def main() -> int:
    """Measure every combination; returns 0: what is asked of the figures is said elsewhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--costs", nargs="+", choices=COSTS, default=list(COSTS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of work for each device")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--niceness", type=int, help="of Ray's workers; Ray's own default is 15")
    given = parser.parse_args()
    if given.niceness is not None:
        os.environ[NICENESS] = str(given.niceness)
    rows = []
    for costs, devices in itertools.product(given.costs, given.devices):
        count = max(1, round(given.seconds * devices / LARGE_S))
        runs, bare = [], []
        for seed in range(given.repeats):
            runs.append(measured_run(draw_workload(COSTS[costs], count, seed), devices))
            bare.append(bare_efficiency(devices))
            rows.append(row_of_runs(costs, count, runs[-1:], bare[-1:]))
            print(*rows[-1], file=sys.stderr, flush=True)
        rows.append(row_of_runs(f"{costs}, median", count, runs, bare))
    print(machine())
    parts = ("begin", "end", "between", "slept")
    titles = ("costs", "devices", "records", "efficiency", "to files", "bare", "over bound", *parts)
    print(markdown_table(titles, rows))
    return 0


def row_of_runs(
    name: str, count: int, runs: "Sequence[TimedRun]", bare: Sequence[float]
) -> list[str]:
    """Return a line of the table: medians, and of what is lost, too."""
    median = statistics.median
    losses = [median(run.losses[part] for run in runs) for part in runs[0].losses]
    return [
        *(name, str(runs[0].devices), str(count), f"{median(r.efficiency for r in runs):.4f}"),
        *(f"{median(r.loop_efficiency for r in runs):.4f}", f"{median(bare):.4f}"),
        *(f"{each:.2%}" for each in (median(r.over_bound for r in runs), *losses)),
    ]


def bare_efficiency(devices: int, sleeps: int = 100) -> float:
    """Return the share of their time that processes slept which did nothing else.

    They are kept on cores in turn, as workers on the CPU are.
    """
    code = (
        "import os, sys, time\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "os.sched_setaffinity(0, {cores[int(sys.argv[1]) % len(cores)]})\n"
        "time.sleep(2.0)\n"
        "begin = time.perf_counter()\n"
        f"for _ in range({sleeps}): time.sleep({LARGE_S})\n"
        "print(time.perf_counter() - begin)"
    )
    sleepers = [
        subprocess.Popen([sys.executable, "-I", "-c", code, str(n)], stdout=subprocess.PIPE)
        for n in range(devices)
    ]
    seconds = [float(sleeper.communicate()[0]) for sleeper in sleepers]
    return sleeps * LARGE_S * devices / sum(seconds)


def measured_run(
    workload: Workload, devices: int, *, prelude: str = "", patience_s: float = 600.0
) -> TimedRun:
    """Run a workload on pretend devices of this machine. `prelude` is run by the driver's process
    before the command, to try what a change of it does.

    Raises:
        RuntimeError: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="rp-eff-") as name:
        folder = Path(name)
        (folder / "ready").mkdir()
        dump = write_workload(folder / "dump.json", workload)
        environment = {
            **os.environ,
            "PYTHONPATH": str(PRETEND),
            "PRETEND_BARRIER": f"{folder / 'ready'}:{devices}",
        }
        arguments = [
            "run_ut", "-api_info", str(dump), "-o", str(folder / "out"),
            "-d", *map(str, range(devices)),
            "--device-type", "cpu", "--bench-workers", "0",
        ]  # fmt: skip
        code = f"import sys\n{prelude}\nfrom ray_precheck.cli import entry\nsys.exit(entry())"
        command = (
            [sys.executable, "-c", code] if prelude else [sys.executable, "-m", "ray_precheck"]
        )
        done = subprocess.run(
            [*command, *arguments],
            env=environment, cwd=ROOT, capture_output=True, text=True, timeout=patience_s, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}{done.stdout}")
        return _read(folder / "out", workload, devices)


def write_workload(path: Path, workload: Workload) -> Path:
    """Write a dump of additions, each with its seconds to sleep, and a shape that makes the
    planner's estimate that of its task."""
    data = {}
    for task in sorted(workload.tasks, key=lambda each: each.index):
        elements = max(1, round((task.cost_s - PER_CALL_S) / PER_ELEMENT_S))
        data[f"Tensor.add.{task.index}.forward"] = {
            "input_args": [{
                "type": "torch.Tensor", "dtype": "torch.float32", "shape": [elements],
                "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 1.0, "requires_grad": False,
            }],
            "input_kwargs": {
                "sleep_s": {"type": "float", "value": workload.actual_s[task.index]}
            },
            "output": [],
        }  # fmt: skip
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**header, "data": data}))
    return path


def _read(out: Path, workload: Workload, devices: int) -> TimedRun:
    (timeline,) = out.glob("accuracy_checking_*.timeline.json")
    (result,) = out.glob("accuracy_checking_result_*.csv")
    events: list[dict[str, Any]] = json.loads(timeline.read_text())
    spans = [
        DeviceSpan(f"{e['pid']} {e['tid']}", e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
        for e in events
        if e["ph"] == "X"
    ]
    if len(spans) != len(workload.tasks):
        raise RuntimeError(f"{len(spans)} spans of {len(workload.tasks)} records: {timeline}")
    return TimedRun(devices, spans, workload.actual_s, result.stat().st_mtime)


if __name__ == "__main__":
    sys.exit(main())
