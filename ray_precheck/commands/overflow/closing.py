"""What `overflow_check` prints: the births first, then what is known of the rest.

Comes in: an `OverflowReport`. Goes out: text, an exit code. Called by the command.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ray_precheck.options.commands import STOPPED, UNUSABLE, code_of
from ray_precheck.running.views import quantity
from ray_precheck.schema.result import Verdict
from ray_precheck.trace.overflow.headroom import NEAR_BITS, Trend
from ray_precheck.trace.overflow.rows import HEADROOM, Birth, OverflowRow

if TYPE_CHECKING:
    from ray_precheck.commands.overflow.run import OverflowReport

_SHOWN = 10


def overflow_lines(report: "OverflowReport") -> Iterator[str]:
    """Yield the closing lines of a search, the births first."""
    flagged = [row for row in report.rows if row.birth == Birth.FLAGGED.value]
    if flagged:
        yield f"The device has seen {quantity(len(flagged), 'overflow')}"
    for row in flagged[:_SHOWN]:
        yield f"  {shown_place(row)}{row.message}"
        if row.source:
            yield f"    {row.source}"
    if len(flagged) > _SHOWN:
        yield f"  and {len(flagged) - _SHOWN} more"
    born = [row for row in report.rows if row.is_born]
    if born:
        where = len({row.dump for row in born})
        dumps = quantity(len(report.dumps), "dump")
        yield f"NaN or infinity was born in {quantity(len(born), 'place')}, {where} of {dumps}"
    for row in births_by_turns(born)[:_SHOWN]:
        yield from _shown(row)
    if len(born) > _SHOWN:
        yield f"  and {len(born) - _SHOWN} more"
    for each in report.dumps:
        if each.records is None:
            yield f"{each.name} cannot be read: {each.message}"
        elif each.message:
            yield f"{each.name}: {each.message}"
    yield from _came_in(report)
    if not born and not any(each.verdict is Verdict.ERROR for each in report.dumps):
        yield _nothing(report)
    gone = sum(row.birth == Birth.GONE.value for row in report.rows)
    if gone:
        yield f"Masks took {quantity(gone, 'birth')} away again: no loss, gradient or state holds them"
    said = (HEADROOM, Birth.FLAGGED.value)
    counts = Counter(row.birth for row in report.rows if row.birth not in said and not row.is_born)
    if counts:
        yield "Other rows: " + ", ".join(f"{count} {birth}" for birth, count in counts.items())
    yield from _headroom(report)
    yield f"Rows: {report.files.details}"


def births_by_turns(born: Iterable[OverflowRow]) -> list[OverflowRow]:
    """Return the first births of all dumps, then the second ones, and so on."""
    number: Counter[str] = Counter()
    ranked = []
    for row in born:
        ranked.append((number[row.dump], row))
        number[row.dump] += 1
    return [row for _, row in sorted(ranked, key=lambda pair: pair[0])]


def _shown(row: OverflowRow) -> Iterator[str]:
    dtype = f" in {row.dtype}" if row.dtype else ""
    yield f"  {shown_place(row)}{row.api}.{row.tensor}: {row.kind}{dtype} ({row.birth})"
    yield f"    {row.message}"
    if row.module:
        yield f"    in {row.module}"
    if row.source:
        yield f"    {row.source}"


def shown_place(row: OverflowRow) -> str:
    """Return the step and the rank of a row, `step 3, rank 1: `, "" where there is neither."""
    parts = [f"step {row.step}"] if row.step else []
    parts += [shown_rank(row.rank)] if row.rank else []
    return f"{', '.join(parts)}: " if parts else ""


def shown_rank(rank: str) -> str:
    """Return a rank in words: `rank 1`; `proc4711` stays."""
    return f"rank {rank}" if rank.isdigit() else rank


def _came_in(report: "OverflowReport") -> Iterator[str]:
    """Yield a line for each dump that only got what was not finite, or met it anew."""
    born = {row.dump for row in report.rows if row.is_born}
    by_dump: dict[str, OverflowRow] = {}
    firsts = {each.name: each.first for each in report.dumps if each.first}
    for row in report.rows:
        if row.dump not in born and firsts.get(row.dump) == f"{row.api}.{row.tensor}":
            by_dump.setdefault(row.dump, row)
    for row in list(by_dump.values())[:_SHOWN]:
        yield f"{shown_place(row)}{row.kind} {row.birth} at {row.api}.{row.tensor}: {row.message}"
    if len(by_dump) > _SHOWN:
        yield f"  and so in {len(by_dump) - _SHOWN} more dumps"


def _nothing(report: "OverflowReport") -> str:
    records = sum(each.records or 0 for each in report.dumps)
    if all(each.verdict is Verdict.SKIP for each in report.dumps):
        return f"Nothing could be checked: {records} records have no statistics"
    other = "other " if any(row.birth == Birth.GONE.value for row in report.rows) else ""
    where = f"{records} records of {quantity(len(report.dumps), 'dump')}"
    return f"No {other}NaN and no {other}infinity was born in {where}"


def _headroom(report: "OverflowReport") -> Iterator[str]:
    if report.headroom is None:
        return
    found = report.trends
    if not found:
        yield f"No tensor is within a factor of {2**NEAR_BITS:g} of the limit of its dtype, or gets there"
    for each in found[:_SHOWN]:
        rank = f"{shown_rank(each.rank)}: " if each.rank else ""
        yield f"  {rank}{each.key}.{each.tensor}: {_trend(each)}"
    yield f"Headroom: {report.headroom}"


def _trend(trend: Trend) -> str:
    said = f"within a factor of {2**trend.bits:.3g} of the limit of {trend.dtype}"
    if trend.reached is not None:
        said += f", which the line through {trend.steps} steps reaches in step {trend.reached:.0f}"
    return said


def search_exit_code(report: "OverflowReport") -> int:
    """Return the exit code of a search: an overflow counts more than a dump that cannot be read."""
    if not report.completed:
        return STOPPED
    verdicts = {each.verdict for each in report.dumps}
    if Verdict.ERROR not in verdicts and any(each.records is None for each in report.dumps):
        return UNUSABLE
    return code_of(verdicts)
