"""Measure what ray_precheck promises, on the machine that this runs on, and print ratios.

    python -m scripts.speed.bench speed DUMP [--msprobe CMD] [--pairs N]
                                              whole commands in pairs, and one device against a
                                              bare loop without Ray
    python -m scripts.speed.bench memory DUMP       the largest process and all together, for a large dump
    python -m scripts.speed.bench stage DUMP [--pairs N]
                                              the loop with a bench worker on a second core, against
                                              device and bench on one core, and on two fused ones
    python -m scripts.speed.bench capture [--pairs N] [--kinds L1 mix ...]
                                              a captured step of a training against a plain one
    python -m scripts.speed.bench watch [--steps N]
                                              what `capture --watch` adds to a step, in ms

Machines are shared and noisy: whole commands are compared in pairs, one right after the other, and
medians of ratios are printed. CMD is a command that checks a dump with msprobe and takes DUMP and
an output folder, for example a script around `msprobe multi_acc_check -api_info $1 -o $2 -d 0 1`. `python -m
scripts.speed.scale` makes large dumps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.measuring import ROOT, RanCommand, machine, ran


def run_precheck(dump: Path, out: Path, *options: str) -> RanCommand:
    """Run the whole command."""
    words = ("run_ut", "-api_info", dump.resolve(), "-o", out, *options)
    return ran("ray_precheck", *words, codes=(0, 1))


def bench_capture(given: argparse.Namespace) -> bool:
    """Print what captures cost; only this one needs PyTorch."""
    from scripts.speed.capture_cost import KINDS, report_costs

    unknown = set(given.kinds or ()) - set(KINDS)
    if unknown:
        raise SystemExit(
            f"no kind is called {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}"
        )
    return report_costs(given.kinds or list(KINDS), given.pairs)


def bench_watch(given: argparse.Namespace) -> bool:
    """Print what a watch costs; it needs PyTorch, too."""
    from scripts.speed.watch_cost import report_watch_cost

    return report_watch_cost(given.steps)


def bench_speed(given: argparse.Namespace) -> bool:
    """Print the whole command against msprobe's, and one device against a bare loop."""
    ratios, efficiencies = [], []
    for _ in range(given.pairs if given.msprobe else 0):
        with tempfile.TemporaryDirectory() as folder:
            ours = run_precheck(given.dump, Path(folder) / "ours", "-d", "0", "1").wall_s
            begin = time.monotonic()
            words = [given.msprobe, str(given.dump), str(Path(folder) / "theirs")]
            subprocess.run(words, capture_output=True, check=True)
            theirs = time.monotonic() - begin
        ratios.append(ours / theirs)
        print(f"whole command, 2 devices: {ours:.1f} s, msprobe {theirs:.1f} s: {ratios[-1]:.3f}")
    if ratios:
        print(f"median ratio to msprobe: {statistics.median(ratios):.3f}")
    for _ in range(given.pairs):
        bare, driven = run_loop(given.dump, "bare_loop"), run_loop(given.dump, "driven_loop")
        efficiencies.append(driven / bare)
        print(f"one device: {driven:.0f} api/s, bare loop {bare:.0f} api/s: {efficiencies[-1]:.3f}")
    print(f"median of one device to the bare loop: {statistics.median(efficiencies):.3f}")
    return statistics.median(efficiencies) >= 0.8


def run_loop(dump: Path, which: str) -> float:
    """Run one of the loops below in a process of its own; returns its records per second."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from scripts.speed import bench; bench.{which}()"
    command = [sys.executable, "-c", code, str(dump)]
    # Ray gives its workers one OpenMP thread; the bare loop must not have more.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def bare_loop() -> None:
    """Generate, run, bench and compare every record once, without Ray; print records per second."""
    from ray_precheck.check.checker import Checker
    from ray_precheck.check.settings import CheckSettings
    from ray_precheck.dump.parse import open_dump
    from ray_precheck.replay.planner import plan_tasks

    with open_dump(sys.argv[1]) as dump:
        tests_dump = dump.task == "tensor"
        checker = Checker(
            CheckSettings(dump.framework, dump.task, dump.data_folder, tests_dump=tests_dump), "cpu"
        )
        clock = _Clock()
        for task in plan_tasks(dump, dump.framework, set()).tasks:
            clock.add([checker.check(dump.payload(task))])
        print(clock.rate())


def driven_loop() -> None:
    """Do the same through Ray with one device; print records per second after start-up."""
    from ray_precheck.commands.precheck.run import run
    from ray_precheck.replay.config import RunConfig
    from ray_precheck.running import run as running

    clock = _Clock()

    class ClockedProgress(running.Progress):
        def add(self, results: "Sequence[object]") -> None:  # type: ignore[override]
            clock.add(results)

    running.Progress = ClockedProgress  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(Path(sys.argv[1]), out=Path(folder), bench_workers=0)
        run(config, show_progress=False)
    print(clock.rate())


class _Clock:
    """Times results from the first arrival to the last; the first ones count as start-up."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._count = 0

    def add(self, results: Sequence[object]) -> None:
        """Count results that have just arrived."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        else:
            self._count += len(results)

    def rate(self) -> float:
        """Return records per second."""
        return self._count / (self._last - (self._first or 0.0))


# How a capture is run on one core and, in two ways, on two.
_FUSED, _STAGE = "one core, fused", "bench stage on a second core"
_WAYS = {
    _FUSED: ("-d", "0", "--bench-workers", "0"),
    _STAGE: ("-d", "0", "--bench-workers", "1"),
    "two devices, fused": ("-d", "0", "1", "--bench-workers", "0"),
}


def bench_stage(given: argparse.Namespace) -> bool:
    """Print how much faster the loop is with a bench worker beside the one device."""
    ratios: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(given.pairs):
        spans = {way: loop_s(given.dump, options) for way, options in _WAYS.items()}
        for way, span in spans.items():
            ratios[way].append(spans[_FUSED] / span)
        shown = (f"{way}: {span:.2f} s ({ratios[way][-1]:.2f})" for way, span in spans.items())
        print(", ".join(shown))
    medians = {way: statistics.median(found) for way, found in ratios.items()}
    print("medians: " + ", ".join(f"{way}: {median:.2f}" for way, median in medians.items()))
    return medians[_STAGE] >= 1.6


def loop_s(dump: Path, options: Sequence[str]) -> float:
    """Run a dump; return the seconds from its first record's begin to its last one's end."""
    with tempfile.TemporaryDirectory() as folder:
        run_precheck(dump, Path(folder), *options)
        (timeline,) = Path(folder).glob("*.timeline.json")
        events = [event for event in json.loads(timeline.read_text()) if event["ph"] == "X"]
    begin = min(event["ts"] for event in events)
    return (max(event["ts"] + event["dur"] for event in events) - begin) / 1e6


def bench_memory(given: argparse.Namespace) -> bool:
    """Print the peak memory of a run."""
    with tempfile.TemporaryDirectory() as folder:
        used = run_precheck(given.dump, Path(folder) / "out", "-d", "0", "1")
    print(
        f"{used.wall_s:.0f} s: {used.largest_mib:.0f} MiB the largest process,"
        f" {used.together_mib:.0f} MiB all together"
    )
    return True


def main() -> int:
    """Run one benchmark; returns 1 where a promise is not met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for action in (bench_speed, bench_memory, bench_stage, bench_capture, bench_watch):
        command = commands.add_parser(action.__name__.removeprefix("bench_"))
        command.set_defaults(action=action)
        if action is bench_capture:
            command.add_argument("--kinds", nargs="+")
        elif action is bench_watch:
            command.add_argument("--steps", type=int, default=2000)
        else:
            command.add_argument("dump", type=Path)
        if action is bench_speed:
            command.add_argument("--msprobe")
        command.add_argument("--pairs", type=int, default=15 if action is bench_capture else 3)
    given = parser.parse_args()
    print(machine())
    return 0 if given.action(given) else 1


if __name__ == "__main__":
    sys.exit(main())
