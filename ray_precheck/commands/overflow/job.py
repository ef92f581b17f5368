"""The search for the births of NaN and infinity as a job: a piece is the dump of one rank in one step.

Comes in: the dumps of a folder. Goes out: a `Job`, its `Opener` and its `Runner`, and rows in the two
tables `OVERFLOW_TABLES`: one for each dump, and one for each finding in it. The session `overflowing`
makes the job; where the dumps are few and small it takes its rows from `settled` and needs no worker.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import DumpError
from ray_precheck.foreign import from_json, read_file
from ray_precheck.formats.conversion import TOOL_FILE
from ray_precheck.running.dumps_job import DumpsJob, DumpWork, as_told
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.tables import Tables, encode_name, encode_row, encode_text
from ray_precheck.trace.overflow.births import MOST_PASSED_ON, Followed, follow
from ray_precheck.trace.overflow.headroom import headrooms
from ray_precheck.trace.overflow.rows import COLUMNS, HEADROOM, Birth, OverflowRow, number_of
from ray_precheck.trace.side import CaptureSide, open_side
from ray_precheck.trace.sources import CONSTRUCT_FILE, Modules, source_lines

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

    @property
    def paths(self) -> tuple[Path, ...]:
        """The dump."""
        return (self.path,)


def overflow_job(
    dumps: Sequence[FoundDump], *, with_headroom: bool = False, shared_fs: bool = False
) -> DumpsJob[OverflowPayload]:
    """Return the dumps of a folder as a job. `shared_fs`: every machine sees them by the same paths."""
    work = DumpWork(
        OVERFLOW_TABLES,
        look,
        _done,
        _BYTES_OF_A_SECOND,
        Verdict.ERROR,
        (CONSTRUCT_FILE, "stack.json", TOOL_FILE),
    )
    payloads = [
        OverflowPayload(
            index, each.label, each.path.absolute(), each.step, each.rank, with_headroom
        )
        for index, each in enumerate(dumps)
    ]
    return DumpsJob(work, payloads, shared_fs=shared_fs)


def look(payload: OverflowPayload, paths: tuple[Path, ...]) -> Done:
    """Return the rows of a dump: what its records did with NaN and infinity.

    `paths` has the place where it stands on this machine. A dump that cannot be read is SKIP and has no
    number of records, one without statistics SKIP with their number.
    """
    began_s, start = time.time(), time.perf_counter()
    try:
        with open_side(str(paths[0])) as side:
            followed = follow(side)
            flags = list(_flags(payload, side))
            rows = [*flags, *_rows(payload, side, followed)]
            told = as_told(side.note, paths, payload.paths)
            note = "; ".join(filter(None, (told, _skipped(side))))
    except (DumpError, OSError) as error:
        return _done(payload, Verdict.SKIP, as_told(str(error), paths, payload.paths))
    verdict, message = _verdict(followed)
    verdict = Verdict.ERROR if flags else verdict
    return _done(payload, verdict, message, followed, rows, began_s, start, note)


def _skipped(side: CaptureSide) -> str:
    """Return that a loss scaler has skipped the update of the step, "" if it has not."""
    if not side.header.is_update_skipped:
        return ""
    scale = side.header.loss_scale
    at = f" (loss scale {scale:g})" if scale is not None else ""
    return (
        f"the loss scaler skipped the update of this step{at}: an overflow in its backward pass is what a"
        " scale that is too large makes, and harmless if later steps have none"
    )


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


def _flags(payload: OverflowPayload, side: CaptureSide) -> Iterator[OverflowRow]:
    """Yield a row for each overflow that the device itself has seen, as the tool of the capture knows it."""
    try:
        found = from_json(read_file(side.folder / TOOL_FILE))
    except (OSError, ValueError):
        return
    listed = found.get("overflow") if isinstance(found, dict) else None
    rank, step = number_of(payload.rank), number_of(payload.step)
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict):
            continue
        bits = each.get("bits")
        said = ", ".join(map(str, bits)) if isinstance(bits, list) else ""
        name = f"[{each.get('type', '')}] {each.get('name', '')}"
        message = (
            f"{name}: {each.get('unit', 'the device')}, status {each.get('status', '')}: {said}"
        )
        api = str(each.get("record") or each.get("name", ""))
        named = api, "", said, Birth.FLAGGED.value, "", "", str(each.get("file", "")), message
        yield OverflowRow(rank, step, *named, payload.name)


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
