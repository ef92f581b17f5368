"""What `naive` prints: the first calls whose kernels differ, the switch to blame, and what to do next.

Comes in: a `NaiveReport`. Goes out: text. Called by the command.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ray_precheck.schema.result import Verdict

if TYPE_CHECKING:
    from ray_precheck.commands.naive.run import NaiveReport, NaiveRow

_SHOWN = 5
_LONGEST_TEXT = 500


def naive_lines(report: "NaiveReport") -> Iterator[str]:
    """Yield the closing lines of a run, the calls in error first, in the order of the dump."""
    wrong = [row for row in report.rows if row.verdict is Verdict.ERROR]
    for row in wrong[:_SHOWN]:
        yield from _shown(row)
    if len(wrong) > _SHOWN:
        yield f"  and {len(wrong) - _SHOWN} more"
    yield _counted(report.rows)
    yield from _blamed(wrong)
    yield f"Rows: {report.files.result}"
    if wrong:
        yield from _next(wrong)


def _shown(row: "NaiveRow") -> Iterator[str]:
    what = {
        "default": "the default kernels are wrong",
        "naive": "the plain kernels are wrong",
        "both": "default and plain kernels are wrong",
    }.get(row.wrong, "")
    unlike = "equal runs differ" if row.reproducible == "no" else ""
    yield f"{row.name}: {' and '.join(filter(None, [what, unlike])) or 'error'}"
    if row.default_error or row.naive_error:
        place = f" at {row.output}{f' {row.at}' if row.at else ''}" if row.output else ""
        yield (
            f"  error{place}, in units of what rounding explains: default {row.default_error or '-'},"
            f" plain {row.naive_error or '-'}, difference {row.difference or '-'}"
        )
    if row.switch:
        yield f"  switch: {row.switch}"
    text = row.message
    yield f"  {text if len(text) <= _LONGEST_TEXT else f'{text[:_LONGEST_TEXT]} ...'}"


def _counted(rows: Sequence["NaiveRow"]) -> str:
    counts = Counter(row.verdict for row in rows)
    unlike = sum(row.reproducible == "no" for row in rows if row.verdict is Verdict.ERROR)
    said = f"{len(rows)} calls: {counts[Verdict.PASS]} pass, {counts[Verdict.ERROR]} error"
    if unlike:
        said += f" ({unlike} not reproducible)"
    return f"{said}, {counts[Verdict.SKIP]} could not be run"


def _blamed(wrong: Sequence["NaiveRow"]) -> Iterator[str]:
    """Yield a line on each switch that makes a difference, the one of most calls first."""
    counts = Counter(row.switch for row in wrong if row.switch)
    for switch, count in counts.most_common():
        yield f"Switch {switch}: {count} of {len(wrong)} calls in error"


def _next(wrong: Sequence["NaiveRow"]) -> Iterator[str]:
    """Yield what to do next, from the kinds of errors that there are."""
    yield "Next:"
    if any(row.switch for row in wrong):
        yield (
            "  run the model with the switch of the calls above off, as their messages say, and compare its"
            " loss; report the kernel to its maker with the row"
        )
    if any(row.wrong and not row.switch for row in wrong):
        yield (
            "  no switch mends the calls without one: `ray-precheck run_ut --standard auto --tested device"
            " -save_error_data` says more of them and saves their tensors"
        )
    if any(row.reproducible == "no" for row in wrong):
        yield "  two runs of this model cannot be compared bit for bit while these calls differ"
