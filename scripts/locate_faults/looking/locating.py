"""What `locate` says of a case: with one capture, with two, with sketches alone, with statistics alone.

Comes in: a case and a folder for what is written. Goes out: for each way the findings, the first one first.
Called by `main`. Everything runs in this process: a search on one processor core needs no cluster.
"""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.locate_faults.cases import HONEST, FaultCase
from scripts.locate_faults.looking.replaying import remembered
from scripts.locate_faults.twins import SKETCHES, STATISTICS, twin_of
from scripts.measuring import rows_of_table

ONE, TWO = "one capture", "two captures"
TWO_SKETCHES, TWO_STATISTICS = "two, sketches", "two, statistics"
_TWINS = {TWO_SKETCHES: SKETCHES, TWO_STATISTICS: STATISTICS}
_SHOWN = 8


def located(case: FaultCase, ways: Iterable[str], scratch: Path) -> dict[str, list[list[Any]]]:
    """Return the findings of each of some ways."""
    return {way: _located_by(way, case, scratch) for way in ways}


def ways_of(case: FaultCase) -> tuple[str, ...]:
    """Return the ways to look at a case: the target of an honest pair is a case of its own, and ranks
    have no twins."""
    if not case.golden:
        return (ONE,)
    if case.family == HONEST:
        return (TWO, *_TWINS) if Path(case.target).is_file() else (TWO,)
    return (ONE, TWO, *_TWINS) if Path(case.target).is_file() else (ONE, TWO)


def _located_by(way: str, case: FaultCase, scratch: Path) -> list[list[Any]]:
    target = Path(case.target)
    if way == ONE:
        return _found(target, None)
    golden = Path(case.golden)
    if way in _TWINS:
        target, golden = (_twin(each, _TWINS[way], scratch) for each in (target, golden))
    return _found(target, golden)


def _twin(dump: Path, holds: str, scratch: Path) -> Path:
    """Return the twin of a capture, whose folder is named by that of the capture."""
    capture = dump.parents[2]
    return twin_of(dump, holds, scratch / holds / f"{capture.parent.name}-{capture.name}")


def _found(target: Path, golden: Path | None) -> list[list[Any]]:
    # Not at the top: the baseline runs without it.
    from ray_precheck.commands.locate.run import locate_captures

    out = Path(tempfile.mkdtemp(prefix="located_"))
    try:
        with remembered():
            report = locate_captures(target, golden, out=out, devices=(1,))
        if not report.completed:
            raise SystemExit(f"{target}: locate stopped: {report.stop_reason}")
        rows = rows_of_table(report.table.parent, report.table.name)
        return [named_in(row) for row in rows if row["Place"]][:_SHOWN]
    finally:
        shutil.rmtree(out)


def named_in(row: dict[str, str]) -> list[Any]:
    """Return the key with its direction, the own error, what is said, and the verdict of a row."""
    name, direction = row["API Name"], row["Direction"]
    key = name if name.endswith(f".{direction}") else f"{name}.{direction}"
    try:
        own = float(row["Own Error"])
    except ValueError:
        own = 0.0
    said = "; ".join(filter(None, (row["Message"], row["Cause"], row["Index"])))
    return [key, own, said, row["Verdict"]]
