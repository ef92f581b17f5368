"""The text that `compare_results` prints.

Comes in: a `ResultComparison`. Goes out: text for a terminal. Called by the command line.
"""

from ray_precheck.commands.compare_results.compare_results import RatioRow, ResultComparison
from ray_precheck.commands.precheck.report.beyond import times_cell
from ray_precheck.commands.precheck.report.closing import shown_name
from ray_precheck.schema.result import Verdict

WORST = 10
LISTED = 10


def format_comparison(comparison: ResultComparison) -> str:
    """Return counts, the worst outputs, the rows that are in one file only, and where the CSV is."""
    passes, errors, skips = (
        comparison.count(verdict) for verdict in (Verdict.PASS, Verdict.ERROR, Verdict.SKIP)
    )
    lines = [f"{passes + errors} outputs compared: {passes} pass, {errors} error"]
    if skips:
        lines[0] += f"; {skips} not compared"
    worst = sorted(comparison.rows, key=lambda row: (-row.excess, row.name))[:WORST]
    shown = [row for row in worst if row.excess > 0]
    if shown:
        lines += ["", "Nearest to their limits, or beyond (error as a multiple of the limit):"]
        lines += [_line(row) for row in shown]
    for path, names in comparison.only_in.items():
        if names:
            lines += ["", f"{len(names)} outputs are in {path} only:"]
            lines += [f"  {shown_name(name)}" for name in names[:LISTED]]
            lines += [f"  ... and {len(names) - LISTED} more"] if len(names) > LISTED else []
    if comparison.limited:
        lines += ["", _limited_note(comparison.limited)]
    return "\n".join([*lines, "", f"Comparison: {comparison.path}"])


def _line(row: RatioRow) -> str:
    tensor = f"{shown_name(row.name)} ({row.dtype}, {row.shape})"
    return f"  {row.verdict.value:6} {times_cell(row.excess):>10}  {tensor}"


def _limited_note(count: int) -> str:
    return (
        f"Of {count} outputs only MaxRelativeErr was compared: mean, RMSE and small values are"
        " written by runs with another --standard than msprobe, as --standard benchmark."
    )
