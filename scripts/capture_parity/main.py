"""The command: captures, compares, and prints a table.

Comes in: the command line. Goes out: a row for each model and level, the differences by their reasons, and an
exit code: 1 where fewer than 99.5 % of msprobe's keys are ours, or a difference has no reason.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.capture_parity.reasons import NO_DTYPE, REASONS, SUM_ORDER, Dumps, reason_of
from scripts.capture_parity.records import RecordDifference, differences_of_dumps
from scripts.capture_parity.verdicts import (
    MsprobeRows,
    compare_with_msprobe,
    other_verdicts,
    prechecked_verdicts,
)
from scripts.measuring import markdown_table, ran

MODEL_NAMES = ("qwen3", "gpt2", "t5", "mixtral", "resnet18", "swin")
LEVELS = ("L1", "mix")
LEAST_KEYS = 0.995
_SHOWN = 12


@dataclass
class Parity:
    """How two captures of one step compare; `without_reason` are differences that nothing explains."""

    title: str
    theirs: int = 0
    common: int = 0
    without_border: int = 0
    same: int = 0
    more: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    without_reason: list[RecordDifference] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    checked: int = 0
    skipped: int = 0
    compared: MsprobeRows | None = None
    failing_rows: Counter[str] = field(default_factory=Counter)

    @property
    def keys(self) -> float:
        """The share of msprobe's keys that we have."""
        return self.common / self.theirs if self.theirs else 1.0

    @property
    def is_reached(self) -> bool:
        """Whether enough keys are there, and all else is explained.

        A call that gives its input back has no border, and so no gradients there.
        """
        unexplained = self.without_reason or self.verdicts or self.failing_rows[""]
        there = self.common + self.without_border
        return there >= LEAST_KEYS * self.theirs and not unexplained


def compare_dumps(title: str, dumps: Dumps) -> Parity:
    """Compare two dumps record by record."""
    found = Parity(title, len(dumps.theirs))
    found.common = sum(key in dumps.ours for key in dumps.theirs)
    found.more = sum(key not in dumps.theirs for key in dumps.ours)
    unlike = set()
    for each in differences_of_dumps(dumps.theirs, dumps.ours):
        reason = reason_of(each, dumps)
        if reason is None:
            found.without_reason.append(each)
        else:
            found.reasons[reason] += 1
            found.without_border += each.kind == "missing"
        if each.kind not in ("missing", "extra") and reason != SUM_ORDER:
            unlike.add(each.key)
    found.same = found.common - len(unlike)
    return found


def incomplete_calls(dumps: Dumps) -> frozenset[str]:
    """Return the calls of which msprobe's forward record lacks a dtype, so that they cannot be made."""
    return frozenset(
        each.key.removesuffix(".forward")
        for each in differences_of_dumps(dumps.theirs, dumps.ours)
        if each.kind == "more" and reason_of(each, dumps) == NO_DTYPE
    )


def explain_rows(compared: MsprobeRows, dumps: Dumps) -> Counter[str]:
    """Return how many rows of msprobe's comparison fail for which reason, "" for none.

    The reason is that of a difference of the same record, the first that is more than the order of sums.
    """
    reasons: dict[str, str] = {}
    for each in differences_of_dumps(dumps.theirs, dumps.ours):
        if each.kind != "extra" and reasons.get(each.key, SUM_ORDER) == SUM_ORDER:
            reasons[each.key] = reason_of(each, dumps) or ""
    found: Counter[str] = Counter()
    for row in compared.failing:
        keys = [key for key in reasons if row.name.startswith(f"{key}.")]
        found[reasons[max(keys, key=len)] if keys else ""] += 1
    return found


def dump_of(folder: Path) -> Path:
    """Return the only dump.json of a capture."""
    (path,) = folder.glob("step0/*/dump.json")
    return path


def capture_step(
    tool: str, model: str, level: str, gradients: str, out: Path, more: Sequence[str]
) -> None:
    """Capture one step in a process of its own, unless the folder has it already."""
    if list(out.glob("step0/*/dump.json")):
        return
    ran("scripts.capture_parity.child", tool, model, level, gradients, out, path=more)


def measure_model(
    model: str, level: str, gradients: str, folder: Path, msprobe: Sequence[str]
) -> Parity:
    """Capture a model with both tools, and compare."""
    theirs, ours = folder / f"{model}-{level}-msprobe", folder / f"{model}-{level}-{gradients}"
    capture_step("msprobe", model, level, gradients, theirs, msprobe)
    capture_step("ours", model, level, gradients, ours, ())
    paths = dump_of(theirs), dump_of(ours)
    their_records, our_records = (json.loads(path.read_bytes())["data"] for path in paths)
    dumps = Dumps(their_records, our_records, level, gradients)
    found = compare_dumps(f"{model}, {level}", dumps)
    their_verdicts, our_verdicts = (prechecked_verdicts(path) for path in paths)
    found.checked = len(their_verdicts.keys() & our_verdicts.keys())
    found.verdicts, found.skipped = other_verdicts(
        their_verdicts, our_verdicts, incomplete_calls(dumps)
    )
    compared = compare_with_msprobe(
        *paths, folder / f"{model}-{level}-{gradients}-compared", msprobe
    )
    found.compared = compared
    found.failing_rows = explain_rows(compared, dumps)
    return found


def row_of_table(found: Parity) -> list[str]:
    """Return a row: keys, records that are the same, verdicts and msprobe's rows."""
    rows, passed = 0, 0
    if found.compared is not None:
        rows, passed = found.compared.rows, found.compared.rows - len(found.compared.failing)
    return [
        found.title,
        f"{found.common} of {found.theirs} ({found.keys:.1%})",
        str(found.more),
        str(found.same),
        f"{found.checked - len(found.verdicts)} of {found.checked}",
        f"{passed} of {rows}",
    ]


def report(results: Sequence[Parity]) -> None:
    """Print the table, the reasons, and what has none."""
    titles = (
        "model, level",
        "keys",
        "further ones",
        "same records",
        "same verdicts",
        "rows that pass",
    )
    print(markdown_table(titles, map(row_of_table, results)))
    reasons: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for found in results:
        reasons.update(found.reasons)
        rows.update(found.failing_rows)
    skipped = sum(found.skipped for found in results)
    print(f"\n{skipped} verdicts are ours alone: msprobe's record of the call lacks a dtype\n")
    rounding = sum(found.compared.by_rounding for found in results if found.compared)
    lines = [[why, reasons[why], rows[why]] for why in REASONS if reasons[why] or rows[why]]
    lines.append(["its norms are rounded to float32", "", rounding])
    print(markdown_table(("why", "differences", "rows of msprobe's comparison"), lines))
    for found in results:
        lacking = [f"no reason: {_shown(each)}" for each in found.without_reason]
        lacking += [f"another verdict: {line}" for line in found.verdicts]
        if found.failing_rows[""] and found.compared:
            lacking += [
                f"a row, perhaps without a reason: {row.name}" for row in found.compared.failing
            ]
        for line in lacking[: 3 * _SHOWN]:
            print(f"{found.title}: {line}", file=sys.stderr)


def _shown(each: RecordDifference) -> str:
    return (
        f"{each.kind} {each.key} {each.path}: {str(each.theirs)[:80]}, ours {str(each.ours)[:80]}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description="captures of this package beside msprobe's")
    parser.add_argument(
        "--msprobe", nargs="+", required=True, help="folders of msprobe and of what it needs"
    )
    parser.add_argument("--models", nargs="+", default=MODEL_NAMES, choices=MODEL_NAMES)
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=LEVELS)
    parser.add_argument(
        "--gradients", default="node", choices=("node", "border"), help="default node"
    )
    parser.add_argument(
        "--captures", type=Path, help="keep the captures here, and use those that are there"
    )
    options = parser.parse_args(arguments)
    folder = options.captures or Path(tempfile.mkdtemp(prefix="capture_parity_"))
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for model in options.models:
        for level in options.levels:
            results.append(measure_model(model, level, options.gradients, folder, options.msprobe))
            print(*row_of_table(results[-1]), sep=" | ", file=sys.stderr)
    report(results)
    return 0 if all(found.is_reached for found in results) else 1
