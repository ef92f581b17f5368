"""What `ranks` prints: the findings, the likeliest cause first, then what was and was not checked.

Comes in: a `RankChecks`. Goes out: text, an exit code. Called by the command.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED, UNUSABLE
from ray_precheck.running.views import quantity
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.ranks.nouns import RankFinding

if TYPE_CHECKING:
    from ray_precheck.commands.ranks.run import RankChecks

_SHOWN = 10


def ranks_lines(report: "RankChecks") -> Iterator[str]:
    """Yield the closing lines of a check."""
    for verdict in (ERROR, WARNING):
        found = [each for each in report.findings if each.verdict == verdict]
        if found:
            what = "finding" if verdict == ERROR else "warning"
            yield f"{quantity(len(found), what)}, the likeliest cause first:"
        for each in found[:_SHOWN]:
            yield from _shown(each)
        if len(found) > _SHOWN:
            yield f"  and {len(found) - _SHOWN} more"
    if report.completed and not report.findings:
        ranks = len({each.name.rpartition("/")[2] for each in report.dumps})
        nothing = ranks < 2 or not report.groups
        yield (
            "Nothing could be checked"
            if nothing
            else f"The {ranks} ranks agree in all that was checked"
        )
    if report.checked:
        yield "Checked:"
        yield from (f"  {each}" for each in report.checked[:_SHOWN])
        if len(report.checked) > _SHOWN:
            yield f"  and {len(report.checked) - _SHOWN} more"
    if report.not_checked:
        yield "Not checked:"
        yield from (f"  {each}" for each in report.not_checked[:_SHOWN])
        if len(report.not_checked) > _SHOWN:
            yield f"  and {len(report.not_checked) - _SHOWN} more"
    for dump in report.dumps:
        if dump.records is None:
            yield f"{dump.name} cannot be read: {dump.message}"
    yield f"Rows: {report.files.details}"


def _shown(each: RankFinding) -> Iterator[str]:
    yield f"  step {each.step}, {each.group}: [{each.kind.value}] {each.message}"
    if each.module:
        yield f"    in {each.module}"
    if each.source:
        yield f"    {each.source}"


def ranks_exit_code(report: "RankChecks") -> int:
    """Return the exit code of a check: an error counts more than a dump that cannot be read."""
    if not report.completed:
        return STOPPED
    if any(each.verdict == ERROR for each in report.findings):
        return IN_ERROR
    if any(each.records is None for each in report.dumps):
        return UNUSABLE
    return PASSED if report.groups or report.findings else NOTHING_CHECKED
