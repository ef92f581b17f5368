"""Locating by statistics or sketches as a job: a piece is a pair of dumps, of one rank in one step.

Comes in: the pairs of dumps that have no files of tensors. Goes out: a `Job`, its `Opener` and its `Runner`,
and rows in the two tables `PAIR_TABLES`: one for each pair, and one for each root and for each record that
passes an error on. The session makes the job; where the dumps are few and small it takes its rows
from `settled` and needs no worker.
"""

import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.errors import DumpError, UsageError
from ray_precheck.jobs.location.dumps import DumpToLocate
from ray_precheck.jobs.location.pairs_cargo import PairCargo, unpacked_pair
from ray_precheck.jobs.location.plan import plan_location
from ray_precheck.jobs.location.rows import PAIR_TABLES, encoded_located
from ray_precheck.jobs.location.walk import located_in
from ray_precheck.report.sources import source_lines
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.done import Done
from ray_precheck.schema.phase import Phase
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import DeviceSlot, Task
from ray_precheck.store.columns import encode_name, encode_row, encode_text
from ray_precheck.trace.locating.roots import INHERITED, Located
from ray_precheck.trace.overflow.modules import Modules
from ray_precheck.trace.side import open_side

# A core walks through the records of this many bytes of both dumps in a second.
_BYTES_OF_A_SECOND = 16e6
# So many records of all dumps that only pass an error on have rows, and so many of one dump at least.
_MOST_PASSED, _FEWEST_PASSED = 20_000, 100
_TAIL_BYTES = 1 << 16


@pickled_by_position
@dataclass(frozen=True, slots=True)
class PairPayload:
    """A pair of dumps to search. `most` records that pass an error on, and as many of collectives, have
    rows."""

    index: int
    name: str
    target: Path
    golden: Path
    exact: bool
    is_first_step: bool
    most: int


class DumpPairsJob:
    """Pairs of dumps as a job. `shared_fs`: every machine sees them by the same paths."""

    has_bench = bench_suffices = False
    memory_limit_bytes = 0

    def __init__(
        self,
        pairs: Sequence[DumpToLocate],
        *,
        exact: bool = False,
        first_step: str = "",
        shared_fs: bool = False,
    ) -> None:
        self.tables = PAIR_TABLES
        self.names = [each.label for each in pairs]
        most = max(_FEWEST_PASSED, _MOST_PASSED // max(1, len(pairs)))
        self._payloads = [
            PairPayload(
                index, each.label, each.target, each.golden or each.target, exact,
                each.step == first_step, most,
            )
            for index, each in enumerate(pairs)
        ]  # fmt: skip
        both = [(each.target, each.golden) for each in self._payloads]
        self.sizes = [sum(map(_size_of, paths)) for paths in both]
        self.cargo = None if shared_fs else PairCargo(both)

    @property
    def cost_s(self) -> float:
        """The seconds that one core needs for all pairs."""
        return sum(self.sizes) / _BYTES_OF_A_SECOND

    def tasks(self, done: set[str]) -> list[Task]:
        """Return the pairs that have no row yet, the largest first."""
        found = [
            Task(index, name, size / _BYTES_OF_A_SECOND)
            for index, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
            if name not in done
        ]
        return sorted(found, key=lambda task: -task.cost_s)

    def settled(self, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yield the rows of pairs that are searched in this process, as they are asked for."""
        for task in tasks:
            yield search(self.payload(task))

    def payload(self, task: Task) -> PairPayload:
        """Return the paths of a pair."""
        return self._payloads[task.index]

    def opener(self, *, is_home: bool) -> "DumpPairsOpener":
        """Return the opener of runners, which need no device."""
        return DumpPairsOpener()

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the row of a pair that broke its worker."""
        return _done(self.payload(task), Verdict.SKIP, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the row of a pair that could not be searched."""
        return _done(self.payload(task), Verdict.SKIP, reason)


@dataclass(frozen=True, slots=True)
class DumpPairsOpener:
    """Opens a runner; it loads no framework."""

    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "DumpPairsRunner":
        """Return a runner."""
        return DumpPairsRunner()


@dataclass(frozen=True, slots=True)
class DumpPairsRunner:
    """Searches one pair of dumps after the other."""

    caveat: str = ""

    def run(self, payload: PairPayload, stage: Stage, *, files: Any = None, **_: Any) -> Done:
        """Return the rows of a pair; `files` are those that were sent to a machine that lacks it."""
        if files is None:
            return search(payload)
        try:
            with unpacked_pair(files, payload.target.name, payload.golden.name) as paths:
                return search(payload, paths)
        except DumpError as error:
            return _done(payload, Verdict.SKIP, str(error))

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: a dump cannot damage the process."""
        return None


def search(payload: PairPayload, paths: tuple[Path, Path] | None = None) -> Done:
    """Return the rows of a pair: where errors begin, and what passes them on.

    `paths` are where both stand on this machine, by default those of the payload. A pair that cannot be
    read is SKIP and has no number of records.
    """
    began_s, start = time.time(), time.perf_counter()
    here, told = paths or (payload.target, payload.golden), (payload.target, payload.golden)
    try:
        with (
            _no_collection(),
            open_side(str(here[0])) as target,
            open_side(str(here[1])) as golden,
        ):
            plan = plan_location(target, golden, exact=payload.exact, must_replay=False)
            located = located_in(target, golden, plan, None, is_first_step=payload.is_first_step)
            notes = [side.note for side in (target, golden) if side.note]
            _shorten(located, payload.most)
            rows = list(_rows(payload, located, target.path))
    except (DumpError, UsageError, OSError) as error:
        return _done(payload, Verdict.SKIP, _as_told(str(error), here, told))
    said = _as_told("; ".join(notes), here, told)
    verdict = Verdict.ERROR if located.roots else Verdict.PASS
    return _done(payload, verdict, said, located, rows, began_s, start)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector away: the records of a dump are a million objects without cycles, which
    it would look through again and again (a third of the time)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _as_told(text: str, here: tuple[Path, Path], told: tuple[Path, Path]) -> str:
    for path, name in zip(here, told, strict=True):
        text = text.replace(str(path), str(name))
    return text


def _shorten(located: Located, most: int) -> None:
    """Leave out what only passes an error on, beyond so many records; others always stay."""
    kept = 0
    passed = []
    for each in located.passed:
        kept += each.verdict == INHERITED
        if each.verdict != INHERITED or kept <= most:
            passed.append(each)
    located.left_out = len(located.passed) - len(passed)
    located.passed = passed
    located.shared_left_out = max(0, len(located.shared) - most)
    del located.shared[most:], located.edges[most:]


def _rows(payload: PairPayload, located: Located, path: Path) -> Iterator[bytes]:
    modules = Modules(path.parent)
    keys = [*(root.key for root in located.roots), *(each.key for each in located.passed)]
    keys += [each.key for each in located.shared]
    keys += [root.before for root in located.roots if root.before]
    sources = source_lines(path, set(keys))
    yield from encoded_located(
        payload.name, located, lambda key: (modules.of(key), sources.get(key, ""))
    )


def _done(
    payload: PairPayload,
    verdict: Verdict,
    message: str,
    located: Located | None = None,
    rows: Sequence[bytes] = (),
    began_s: float = 0.0,
    start: float = 0.0,
) -> Done:
    counts = [""] * 6
    if located is not None:
        roots = located.roots
        counts = [
            str(located.records), str(located.judged), str(located.compared), str(len(roots)),
            encode_name(roots[0].key) if roots else "", str(located.left_out),
        ]  # fmt: skip
    shared = str(located.shared_left_out) if located is not None else ""
    cells = [encode_name(payload.name), verdict.value, *counts, shared, encode_text(message)]
    took_s = time.perf_counter() - start if start else 0.0
    return Done(
        payload.index, payload.name, verdict, encode_row(cells), b"".join(rows), began_s,
        device_s=took_s,
    )  # fmt: skip


def digest_of_pairs(pairs: Iterable[DumpToLocate]) -> str:
    """Return what tells these dumps from others: their places, their sizes and how each of them ends."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.label}\0".encode())
        for path in filter(None, (pair.target, pair.golden)):
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - _TAIL_BYTES))
                    digest.update(f"{size}\0".encode() + file.read())
            except OSError:
                continue  # Its row says that it cannot be read.
    return digest.hexdigest()[:32]


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
