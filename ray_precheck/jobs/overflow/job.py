"""The search for the births of NaN and infinity as a job: a piece is the dump of one rank in one step.

Comes in: the dumps of a folder. Goes out: a `Job`, its `Opener` and its `Runner`, and rows in the two
tables `OVERFLOW_TABLES`: one for each dump, and one for each finding in it. The session `overflowing`
makes the job; where the dumps are few and small it takes its rows from `settled` and needs no worker.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import DumpError
from ray_precheck.jobs.overflow.cargo import OverflowCargo, unpacked
from ray_precheck.jobs.shared_folders import require_folders, seen_folders
from ray_precheck.report.sources import source_lines
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.done import Done
from ray_precheck.schema.phase import Phase
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import DeviceSlot, Task
from ray_precheck.store.columns import encode_name, encode_row, encode_text
from ray_precheck.store.tables import Tables
from ray_precheck.trace.overflow.births import MOST_PASSED_ON, Followed, follow
from ray_precheck.trace.overflow.headroom import headrooms
from ray_precheck.trace.overflow.modules import Modules
from ray_precheck.trace.overflow.rows import COLUMNS, HEADROOM, OverflowRow, number_of
from ray_precheck.trace.side import CaptureSide, open_side

# `overflow_dumps_{timestamp}.csv` and `overflow_check_{timestamp}.csv`.
OVERFLOW_TABLES = Tables(
    "overflow",
    ("Dump", "Overflow Check", "Records", "Births", "First", "Message"),
    COLUMNS,
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("dumps", "check"),
    unit="dumps",
)
# A core follows the records of this many bytes of dump.json in a second.
_BYTES_OF_A_SECOND = 25e6


@pickled_by_position
@dataclass(frozen=True, slots=True)
class OverflowPayload:
    """A dump to look at; `step` and `rank` are the names of its folders."""

    index: int
    name: str
    path: Path
    step: str
    rank: str
    with_headroom: bool


class OverflowJob:
    """The dumps of a folder as a job. `shared_fs`: every machine sees them by the same paths."""

    has_bench = bench_suffices = False
    memory_limit_bytes = 0

    def __init__(
        self, dumps: Sequence[FoundDump], *, with_headroom: bool = False, shared_fs: bool = False
    ) -> None:
        self.tables = OVERFLOW_TABLES
        self.names = [each.label for each in dumps]
        self._payloads = [
            # Absolute: a worker is in another folder.
            OverflowPayload(
                index, each.label, each.path.absolute(), each.step, each.rank, with_headroom
            )
            for index, each in enumerate(dumps)
        ]
        self.sizes = [_size_of(each.path) for each in dumps]
        self._shares = shared_fs
        self.cargo = None if shared_fs else OverflowCargo([each.path for each in dumps])

    def tasks(self, done: set[str]) -> list[Task]:
        """Return the dumps that have no row yet, the largest first."""
        found = [
            Task(index, name, size / _BYTES_OF_A_SECOND)
            for index, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
            if name not in done
        ]
        return sorted(found, key=lambda task: -task.cost_s)

    def settled(self, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yield the rows of dumps that are looked at in this process, as they are asked for."""
        for task in tasks:
            yield look(self.payload(task))

    def payload(self, task: Task) -> OverflowPayload:
        """Return the path of a dump, and what to look for."""
        return self._payloads[task.index]

    def opener(self, *, is_home: bool) -> "OverflowOpener":
        """Return the opener of runners, which need no device. With a shared file system other machines must
        see the folders of the dumps."""
        folders = {each.path.parent for each in self._payloads} if self._shares else ()
        return OverflowOpener(seen_folders(sorted(folders), is_home=is_home))

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the row of a dump that broke its worker."""
        return _done(self.payload(task), Verdict.ERROR, reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the row of a dump that could not be looked at."""
        return _done(self.payload(task), Verdict.SKIP, reason)


@dataclass(frozen=True, slots=True)
class OverflowOpener:
    """Opens a runner; it loads no framework. `must_see` are folders that its machine has to have."""

    must_see: tuple[Path, ...] = ()
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "OverflowRunner":
        """Return a runner.

        Raises:
            DeviceError: the machine does not share the dumps that it is said to share.
        """
        require_folders(slot, self.must_see, "the dumps")
        return OverflowRunner()


@dataclass(frozen=True, slots=True)
class OverflowRunner:
    """Looks at one dump after the other."""

    caveat: str = ""

    def run(self, payload: OverflowPayload, stage: Stage, *, files: Any = None, **_: Any) -> Done:
        """Return the rows of a dump; `files` are those that were sent to a machine that lacks it."""
        if files is None:
            return look(payload)
        try:
            with unpacked(files, payload.path.name) as path:
                return look(payload, path)
        except DumpError as error:
            return _done(payload, Verdict.SKIP, str(error))

    def damage(self) -> tuple[Cause, str] | None:
        """Return None: a dump cannot damage the process."""
        return None


def look(payload: OverflowPayload, path: Path | None = None) -> Done:
    """Return the rows of a dump: what its records did with NaN and infinity.

    `path` is where it stands on this machine, by default the path of the payload. A dump that cannot be
    read is SKIP and has no number of records, one without statistics SKIP with their number.
    """
    began_s, start = time.time(), time.perf_counter()
    here, told = str(path or payload.path), str(payload.path)
    try:
        with open_side(here) as side:
            followed = follow(side)
            rows = list(_rows(payload, side, followed))
            note = side.note.replace(here, told)
    except (DumpError, OSError) as error:
        return _done(payload, Verdict.SKIP, str(error).replace(here, told))
    return _done(payload, *_verdict(followed), followed, rows, began_s, start, note)


def _verdict(followed: Followed) -> tuple[Verdict, str]:
    if not followed.knows:
        return Verdict.SKIP, "no record has statistics of floating values: nothing could be checked"
    said = []
    if followed.unread:
        said.append(
            f"{followed.unread} records are no JSON objects or too large, and were not read"
        )
    if followed.passed_on > MOST_PASSED_ON:
        more = followed.passed_on - MOST_PASSED_ON
        said.append(f"{more} more records passed something on, which have no row")
    return (Verdict.ERROR if followed.alarms else Verdict.PASS), "; ".join(said)


def _rows(payload: OverflowPayload, side: CaptureSide, followed: Followed) -> Iterator[OverflowRow]:
    """Yield the rows of a dump: its findings, then its headrooms where they are asked for."""
    modules = Modules(side.folder)
    sources = source_lines(side.path, {each.key for each in followed.findings})
    rank, step = number_of(payload.rank), number_of(payload.step)
    for each in followed.findings:
        yield OverflowRow(
            rank,
            step,
            each.key,
            each.tensor,
            each.found.words,
            each.birth.value,
            each.dtype,
            modules.of(each.key),
            sources.get(each.key, ""),
            each.message,
            payload.name,
        )
    for near in headrooms(side) if payload.with_headroom else ():
        said = f"{near.bits:.2f} powers of two below the limit of {near.dtype}"
        if near.underflow is not None and near.subnormal is not None:
            said += f"; {near.underflow:.1%} zeros, {near.subnormal:.1%} subnormal"
        kind, module = f"{near.bits:.2f}", modules.of(near.key)
        named = near.key, near.tensor, kind, HEADROOM, near.dtype, module, "", said
        yield OverflowRow(rank, step, *named, payload.name)


def _done(
    payload: OverflowPayload,
    verdict: Verdict,
    message: str,
    followed: Followed | None = None,
    rows: Sequence[OverflowRow] = (),
    began_s: float = 0.0,
    start: float = 0.0,
    note: str = "",
) -> Done:
    alarms = followed.alarms if followed else []
    cells = [
        encode_name(payload.name),
        verdict.value,
        str(followed.records) if followed else "",
        str(followed.births) if followed else "",
        encode_name(alarms[0].place) if alarms else "",
        encode_text("; ".join(filter(None, [note, message]))),
    ]
    details = b"".join(encoded(row) for row in rows)
    took_s = time.perf_counter() - start if start else 0.0
    row = encode_row(cells)
    return Done(payload.index, payload.name, verdict, row, details, began_s, device_s=took_s)


def encoded(row: OverflowRow) -> bytes:
    """Return a row of the findings as a line of CSV."""
    names = [encode_name(cell) for cell in row]
    return encode_row([*names[:8], encode_text(row.source), encode_text(row.message), names[10]])


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
