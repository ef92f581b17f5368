"""Random histories of runs, by seed: the package's scheduler and journal, without Ray.

    python -m scripts.histories --count 1000000 --seed 0 --jobs 1

In each history workers crash, hang and forget, answers are lost, late or doubled, nodes leave and
join, drivers and writers die at any byte, and the power fails. In most histories some benches run in
other processes than their devices, in many captured files are sent ahead. Whatever happens, every
record ends with one row, only a record that broke a fresh worker alone is blamed, no record runs more
often than its bound, a record is in one place at a time, no more bytes wait for benches than may, no
bench worker is idle while a transfer waits for it, and the files can be read after every prefix of the
written bytes. A history that breaks a rule is made smaller and printed with its seed.
"""

import argparse
import gc
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ray_precheck.foreign import caught
from ray_precheck.runtime import driver as driver_module
from scripts.histories.disk import Disk
from scripts.histories.files import files_in
from scripts.histories.process import WORKER_MODULE, without_a_machine
from scripts.histories.watched import WatchedScheduler
from scripts.histories.world import History

_FASTEST_FOLDER = Path("/dev/shm")
_MOST_SHRINKS = 4000
# How many histories a process runs at a time.
_SHARE = 10_000


class Drawn:
    """Choices by a seed; `taken` keeps them, so that they can be given again."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        value = int(self._random() * count)
        self.taken.append(value)
        return value

    def chance(self, one_in: int) -> bool:
        value = self._random() * one_in < 1.0
        self.taken.append(int(value))
        return value


class Given:
    """Choices that were made before; when they run out, each further choice is 0."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._left: Iterator[int] = itertools.chain(choices, itertools.repeat(0))
        self.taken: list[int] = []

    def below(self, count: int) -> int:
        value = min(next(self._left), count - 1)
        self.taken.append(value)
        return value

    def chance(self, one_in: int) -> bool:
        return self.below(2) > 0


@dataclass(frozen=True)
class Failure:
    """A history that broke a rule: its seed, its choices, the rule and the events."""

    seed: int
    choices: tuple[int, ...]
    error: str
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.error}", *(f"  {line}" for line in self.trace)]
        return "\n".join(
            [*lines, f"again: python -m scripts.histories --count 1 --seed {self.seed}"]
        )


@contextmanager
def workplace() -> Iterator[tuple[Path, Disk]]:
    """Provide a folder for files, in memory if possible, and the disk that fails."""
    where = _FASTEST_FOLDER if os.access(_FASTEST_FOLDER, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="histories-", dir=where))
    (folder / "prefix").mkdir()
    disk = Disk()
    try:
        with disk.in_place_of_os(), _simulated():
            gc.freeze()  # The collector need not look at the objects of now again and again.
            yield folder, disk
    finally:
        gc.unfreeze()
        shutil.rmtree(folder)


@contextmanager
def _simulated() -> Iterator[None]:
    """Have drivers make watched schedulers, and workers change nothing of this process."""
    module: Any = driver_module
    before = {name: getattr(WORKER_MODULE, name) for name in without_a_machine()}
    scheduler = module.Scheduler
    module.Scheduler = WatchedScheduler
    for name, stand_in in without_a_machine().items():
        setattr(WORKER_MODULE, name, stand_in)
    try:
        yield
    finally:
        module.Scheduler = scheduler
        for name, original in before.items():
            setattr(WORKER_MODULE, name, original)


def run_history(
    choices: Drawn | Given, folder: Path, disk: Disk, *, every_prefix: bool = False
) -> str:
    """Run one history and return the rule that it broke, "" for none."""
    return _run(choices, folder, disk, [], every_prefix=every_prefix, tell=False)


def _run(
    choices: Drawn | Given,
    folder: Path,
    disk: Disk,
    trace: list[str],
    *,
    every_prefix: bool,
    tell: bool,
) -> str:
    files = files_in(folder)
    for path in (files.result, files.details, files.settings, files.timeline):
        path.unlink(missing_ok=True)
    told = trace if tell else None
    _, error = caught(lambda: History(choices, folder, disk, told).run(every_prefix=every_prefix))
    return "" if error is None else f"{type(error).__name__}: {error}"


def find_failure(seed: int, folder: Path, disk: Disk, *, every_prefix: bool) -> Failure | None:
    """Run the history of a seed; where it breaks a rule return it, made smaller."""
    drawn = Drawn(seed)
    if not run_history(drawn, folder, disk, every_prefix=every_prefix):
        return None
    # To check every prefix is slow, so it is done only where a random prefix finds nothing.
    every_prefix = not run_history(Given(drawn.taken), folder, disk)
    smallest = shrink(drawn.taken, folder, disk, every_prefix=every_prefix)
    trace: list[str] = []
    error = _run(Given(smallest), folder, disk, trace, every_prefix=every_prefix, tell=True)
    return Failure(seed, tuple(smallest), error, tuple(trace))


def shrink(
    choices: Sequence[int], folder: Path, disk: Disk, *, every_prefix: bool = False
) -> list[int]:
    """Return fewer and smaller choices that break a rule too: some left out, others made less."""
    best = list(choices)
    runs = 0

    def take(candidate: list[int]) -> bool:
        nonlocal best, runs
        runs += 1
        if runs > _MOST_SHRINKS or candidate == best:
            return False
        given = Given(candidate)
        if not run_history(given, folder, disk, every_prefix=every_prefix):
            return False
        best = candidate
        while best and best[-1] == 0:  # Where choices run out they are 0.
            best = best[:-1]
        return True

    improved = True
    while improved and runs <= _MOST_SHRINKS:
        improved = False
        for size in (32, 16, 8, 4, 2, 1):
            start = 0
            while start < len(best):
                rest = best[start + size :]
                zeros = [0] * min(size, len(best) - start)
                if take(best[:start] + rest) or take(best[:start] + zeros + rest):
                    improved = True
                else:
                    start += size
        for position in range(len(best)):
            while position < len(best) and best[position] > 0:
                value = best[position]
                less = sorted({0, value // 2, value - 1})
                if not any(take([*best[:position], v, *best[position + 1 :]]) for v in less):
                    break
                improved = True
    return best


def check_seeds(
    first: int, count: int, *, every_prefix_of: int = 10_000, most_failures: int = 1
) -> list[Failure]:
    """Run the histories of `count` seeds and return those that broke a rule.

    Of each history a random prefix of its bytes is checked, of one in `every_prefix_of` all.
    """
    failures: list[Failure] = []
    with workplace() as (folder, disk):
        for seed in range(first, first + count):
            every_prefix = seed % every_prefix_of == 0
            failure = find_failure(seed, folder, disk, every_prefix=every_prefix)
            if failure is not None:
                failures.append(failure)
                if len(failures) >= most_failures:
                    break
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run histories and print the outcome; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=10_000, help="histories (default 10000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    failures: list[Failure] = []
    share = min(_SHARE, -(-options.count // options.jobs))
    firsts = range(options.seed, options.seed + options.count, share)
    counts = [min(share, options.seed + options.count - first) for first in firsts]
    with ProcessPoolExecutor(options.jobs) as pool:
        for failures in pool.map(check_seeds, firsts, counts):
            if failures:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    seconds = time.monotonic() - begun
    for failure in failures:
        print(failure)
    if failures:
        return 1
    rate = f"{seconds:.0f} s, {options.count / seconds:.0f} a second"
    print(f"{options.count} histories from seed {options.seed}: no rule is broken ({rate})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
