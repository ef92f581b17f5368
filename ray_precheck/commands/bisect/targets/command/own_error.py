"""The own error of a named operator, by `locate` of a capture that a command has left.

Comes in: the folder of a trial, in which a command has left a capture. Goes out: a `TrialResult` whose metric
is the own error: how much more an operator's result is off than what its rounding explains. Called by the
runner of the target `run`.
"""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from ray_precheck.commands.bisect.target import TrialResult
from ray_precheck.commands.bisect.trial_command import run_command
from ray_precheck.foreign import open_text
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED
from ray_precheck.processes import module_command
from ray_precheck.searching.bisection import TrialAnswer
from ray_precheck.store.tables import decode_name

# Below $BISECT_TRIAL.
CAPTURE = "capture"
_ERROR = "error"


def judge_own_error(
    folder: Path, name: str, tolerance: float | None, timeout_s: float
) -> TrialResult:
    """Locate in the capture of a trial; FAIL where the own error of the operator is above the tolerance, or
    without one where `locate` says that it is an error.

    `name` is that of a record ("Torch.matmul.3.forward"), a call ("Torch.matmul.3") or an operator
    ("Torch.matmul"): the largest own error among its records counts. UNRESOLVED where `locate` cannot say.
    """
    capture, out = folder / CAPTURE, folder / "located"
    if not capture.exists():
        return TrialResult(
            TrialAnswer.UNRESOLVED,
            message=f"COMMAND has left no capture in $BISECT_TRIAL/{CAPTURE}",
        )
    words = [*module_command("ray_precheck"), "locate", "-tp", str(capture), "-o", str(out)]
    end = run_command([*words, "-d", "0"], os.environ, folder, timeout_s, folder / "locate")
    if end.code not in (PASSED, IN_ERROR, NOTHING_CHECKED):
        return TrialResult(TrialAnswer.UNRESOLVED, message=f"locate: {end.said}")
    rows = [row for table in sorted(out.rglob("locate_values_*.csv")) for row in _rows(table)]
    found = [each for each in rows if name in _forms(each["Record"])]
    if not found:
        near = get_close_matches(
            name, {form for each in rows for form in _forms(each["Record"])}, 1
        )
        told = f"; the nearest is {near[0]}" if near else ""
        return TrialResult(TrialAnswer.UNRESOLVED, message=f"locate measured no {name}{told}")
    return _judged(found, tolerance)


def _judged(found: Sequence[Mapping[str, str]], tolerance: float | None) -> TrialResult:
    measured = [(float(each["Own Error"] or "nan"), each) for each in found]
    known = [pair for pair in measured if not math.isnan(pair[0])]
    if not known:
        return TrialResult(
            TrialAnswer.UNRESOLVED, message=found[0]["Message"] or "no own error is known"
        )
    worst, row = max(known, key=lambda pair: pair[0])
    fails = any(each["Verdict"] == _ERROR for each in found)
    if tolerance is not None:
        fails = worst > tolerance
    said = f"{row['Record']}: {worst:.3g} times what rounding explains"
    return TrialResult(TrialAnswer.FAIL if fails else TrialAnswer.PASS, "0", worst, said)


def _rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of records of a `locate_values_*.csv`; the others are of values."""
    with open_text(table) as file:
        rows = [row for row in csv.DictReader(file) if not row["Value"]]
    return [{**row, "Record": decode_name(row["Record"])} for row in rows]


def _forms(record: str) -> tuple[str, str, str]:
    """Return the names of a record: its own, that of its call, and that of its operator."""
    call = record.rpartition(".")[0]
    return record, call, call.rpartition(".")[0]
