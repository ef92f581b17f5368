"""Summaries of dumps as a job: a piece is the dump of one rank in one step.

Comes in: the dumps of a folder. Goes out: a `Job`, and rows in the two tables `RANK_TABLES`: one for each
dump, and, while the run goes on, its summary in two rows of the table that has the findings in the end.
The session `run` makes the job; where the dumps are few and small it needs no worker.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import DumpError
from ray_precheck.running.dumps_job import DumpsJob, DumpWork, as_told
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.tables import Tables, encode_name, encode_row, encode_text
from ray_precheck.trace.ranks.nouns import RankTrace
from ray_precheck.trace.ranks.packing import pack
from ray_precheck.trace.ranks.summary import summarize

# Columns of `ranks_{timestamp}.csv`; the last one names the dump.
FINDING_COLUMNS = (
    "Step", "Verdict", "Kind", "Name", "Ranks", "Group", "Expected", "Found", "Rests On", "Module",
    "Source", "Message", "Record", "Dump",
)  # fmt: skip
# `ranks_dumps_{timestamp}.csv` and `ranks_{timestamp}.csv`.
RANK_TABLES = Tables(
    "ranks",
    ("Dump", "Summary", "Records", "Collectives", "Message"),
    FINDING_COLUMNS,
    detail_parts=None,
    verdicts=1,
    needs_details=True,
    words=("dumps", ""),
    unit="dumps",
)
# The kinds of the rows that hold summaries.
KEYS, SUMMARY = "keys", "summary"
# A core summarizes the records of this many bytes of dump.json in a second: 8 MB take 0.05 s, and 0.4 s where
# the process has read no dump of this program before.
_BYTES_OF_A_SECOND = 80e6
_NUMBER = re.compile(r"\d+")


@pickled_by_position
@dataclass(frozen=True, slots=True)
class RankPayload:
    """A dump to summarize; `step` and `rank` are the numbers of its folders, 0 where they have none.
    `reads_tensors`: every machine sees its files of tensors."""

    index: int
    name: str
    path: Path
    step: int
    rank: int
    reads_tensors: bool

    @property
    def paths(self) -> tuple[Path, ...]:
        """The dump."""
        return (self.path,)


def rank_number(folder: str) -> int:
    """Return the number in the name of a step's or a rank's folder, 0 where there is none."""
    found = _NUMBER.search(folder)
    return int(found[0]) if found else 0


def ranks_job(
    dumps: Sequence[FoundDump], *, shared_fs: bool = False, is_alone: bool = True
) -> DumpsJob[RankPayload]:
    """Return the dumps of a folder as a job. `shared_fs`: every machine sees them by the same paths;
    `is_alone`: there is no other machine."""
    work = DumpWork(
        RANK_TABLES, summarize_dump, _done, _BYTES_OF_A_SECOND, Verdict.SKIP, ("sketches.npy",)
    )
    payloads = [
        RankPayload(
            index,
            each.label,
            each.path.absolute(),
            rank_number(each.step),
            rank_number(each.rank),
            shared_fs or is_alone,
        )
        for index, each in enumerate(dumps)
    ]
    return DumpsJob(work, payloads, shared_fs=shared_fs)


def summarize_dump(payload: RankPayload, paths: tuple[Path, ...]) -> Done:
    """Return the rows of a dump: its summary. `paths` has the place where it stands on this machine. A dump
    that cannot be read is SKIP."""
    began_s, start = time.time(), time.perf_counter()
    try:
        summary = summarize(
            paths[0], payload.step, payload.rank, payload.name, reads_tensors=payload.reads_tensors
        )
    except (DumpError, OSError) as error:
        return _done(payload, Verdict.SKIP, as_told(str(error), paths, payload.paths))
    summary.note = as_told(summary.note, paths, payload.paths)
    packed = pack(summary)
    rows = b"".join(
        _summary_row(kind, packed.digest, text, payload.name)
        for kind, text in ((KEYS, packed.keys), (SUMMARY, packed.rest))
    )
    return _done(payload, Verdict.PASS, summary.note, summary, rows, began_s, start)


def _summary_row(kind: str, digest: str, text: str, dump: str) -> bytes:
    cells = dict.fromkeys(FINDING_COLUMNS, "")
    cells |= {"Kind": kind, "Name": digest, "Message": text, "Dump": encode_name(dump)}
    return encode_row(cells.values())


def _done(
    payload: RankPayload,
    verdict: Verdict,
    message: str,
    summary: RankTrace | None = None,
    rows: bytes = b"",
    began_s: float = 0.0,
    start: float = 0.0,
) -> Done:
    cells = [
        encode_name(payload.name),
        verdict.value,
        "" if summary is None else str(len(summary.keys)),
        "" if summary is None else str(len(summary.exchanges)),
        encode_text(message),
    ]
    took_s = time.perf_counter() - start if start else 0.0
    return Done(
        payload.index, payload.name, verdict, encode_row(cells), rows, began_s, device_s=took_s
    )
