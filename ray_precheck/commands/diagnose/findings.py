"""What a diagnosis has found: the reports of its parts, and why a part could not be done.

Goes out: the nouns `Part`, `Suspect`, `SuspectCheck` and `Findings`. Made by `run`, read by
the modules that write the page.

The sentences of a page about the operator to blame, and about what it did further down.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.commands.locate.table import PLACES, row_of_place
from ray_precheck.commands.locate.walk.nouns import INFINITE, INHERITED, RootKind
from ray_precheck.commands.locate.walk.places import RootPlace, shown_error
from ray_precheck.commands.ranks.closing import ranks_exit_code
from ray_precheck.dump.folders import FoundDump
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED
from ray_precheck.schema.result import Verdict
from ray_precheck.store.results import ResultRow
from ray_precheck.trace.difference.rows import WARNING

if TYPE_CHECKING:
    from ray_precheck.commands.compare.run import ComparisonReports
    from ray_precheck.commands.overflow.run import OverflowReport
    from ray_precheck.commands.precheck.run import PrecheckReport

# In the place of what a part would have told; its reason stands in the section of what could not be checked.
UNSAID = "This could not be said; the reason stands below."


class Part(Enum):
    """A part of a diagnosis, in the order in which they run; the value is the command that does it alone."""

    COMPARE = "compare"
    LOCATE = "locate"
    OVERFLOW = "overflow_check"
    PRECHECK = "run_ut"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A call that the precheck is to look at, by its name in its dump."""

    dump: FoundDump
    call: str


@dataclass(frozen=True, slots=True)
class SuspectCheck:
    """The precheck of the suspects of one dump on the device of this machine.

    `rows` are those of the suspects. `is_whole`: no suspect was known, and every call of the dump was
    checked; then `rows` are those in error.
    """

    dump: FoundDump
    report: "PrecheckReport"
    rows: tuple[ResultRow, ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """The reports of the parts that were done. `not_done` has a sentence for each part that was not, and
    `unchecked` one for each dump whose suspects could not be prechecked. `left_out` counts suspects beyond
    those that are prechecked."""

    target: Path
    golden: Path | None
    dumps: tuple[FoundDump, ...]
    comparison: "ComparisonReports | None" = None
    overflow: "OverflowReport | None" = None
    location: "LocationReport | None" = None
    suspects: tuple[Suspect, ...] = ()
    left_out: int = 0
    checks: tuple[SuspectCheck, ...] = ()
    not_done: Mapping[Part, str] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()

    def place_of(self, dump: FoundDump) -> Path:
        """Return the folder of a dump's results below that of all results."""
        return dump.place if len(self.dumps) > 1 else Path()


def diagnosis_exit_code(found: Findings) -> int:
    """Return the exit code of a diagnosis that came to its end.

    What the comparison calls an error counts where nothing could look for the operator to blame: else that
    search has told whether an operator is, or the errors have grown of rounding.
    """
    compared = found.comparison.reports if found.comparison is not None else ()
    overflow = [each.verdict for each in found.overflow.dumps] if found.overflow is not None else []
    checked = [check.report.summary for check in found.checks]
    location = found.location
    ranks = location.ranks if location is not None else None
    of_ranks = NOTHING_CHECKED if ranks is None else ranks_exit_code(ranks)
    if (
        (location is not None and location.places)
        or of_ranks == IN_ERROR
        or Verdict.ERROR in overflow
        or any(summary.errors for summary in checked)
        or (location is None and any(report.summary.results["error"] for report in compared))
    ):
        return IN_ERROR
    is_checked = (
        (location is not None and (location.judged or location.compared))
        or of_ranks == PASSED
        or Verdict.PASS in overflow
        or any(not summary.checked_nothing for summary in checked)
        or any(not report.summary.compared_nothing for report in compared)
    )
    return PASSED if is_checked else NOTHING_CHECKED


_SHOWN = 3


def rank_sentences(findings: Findings) -> Iterator[str]:
    """Yield what the ranks of the target tell of each other; nothing of a run with one rank."""
    ranks = findings.location.ranks if findings.location is not None else None
    if ranks is None:
        return
    for each in ranks.findings[:_SHOWN]:
        where = "; ".join(filter(None, (f"in {each.module}" if each.module else "", each.source)))
        doubt = "a warning: " if each.verdict == WARNING else ""
        yield f"Step {each.step}, {each.group}: {doubt}{each.message}{f' ({where})' if where else ''}."
    if len(ranks.findings) > _SHOWN:
        yield f"{len(ranks.findings) - _SHOWN} more findings stand in {ranks.files.details.name}."
    if not ranks.findings:
        yield from (f"They agree: {each}." for each in ranks.checked[:_SHOWN])
    yield from (f"Not checked: {each}." for each in ranks.not_checked[:_SHOWN])


def culprits_of(location: LocationReport) -> list[RootPlace]:
    """Return the roots that are no other inputs, weights, masks or settings, the likeliest first."""
    return [place for place in location.places if not place.root.kind.differs_from_start]


def blame_sentences(findings: Findings) -> Iterator[str]:
    """Yield the first suspects with all that is known of them."""
    location = findings.location
    if location is None:
        yield UNSAID
        return
    found = culprits_of(location)
    if not found:
        yield _none(location)
        return
    yield from _suspect(found[0], location, len(findings.dumps) > 1)
    for place in found[1:_SHOWN]:
        root = place.root
        where = f" of {place.dump.label}" if len(findings.dumps) > 1 else ""
        yield f"Next suspect: {root.key}{where} ({root.kind.value}{_own(place)})."
    if len(found) > _SHOWN:
        yield f"The table of locate has {len(found) - _SHOWN} more."


def _none(location: LocationReport) -> str:
    records = sum(dump.located.records for dump in location.dumps)
    if location.places:
        return "No operator: the runs differ in what they were given, as said above."
    if location.judged:
        return (
            f"No operator is to blame: {location.judged} of {records} records were judged, and each gave what"
            " its inputs and rounding explain."
        )
    return f"This could not be said: none of {records} records could be judged."


def _suspect(place: RootPlace, location: LocationReport, is_many: bool) -> Iterator[str]:
    root = place.root
    where = f" of {place.dump.label}" if is_many else ""
    module, source, message = row_of_place(place, location.table)
    if root.kind is RootKind.GAP:
        yield (
            f"No captured operator errs; something that was not captured does, before {root.key}{where}:"
            f" {message}."
        )
    elif root.kind is RootKind.CALL:
        yield f"The runs are not the same program{where}: {message}."
    else:
        yield f"{root.key}{where} ({root.kind.value}): {_errs(place)}"
        at = f"{root.item}{root.index}"
        cause = f" The likely cause: {root.cause}." if root.cause else ""
        if at:
            yield f"The largest error is at {at}.{cause}"
        elif cause:
            yield cause
        if root.kind is RootKind.ESTIMATE:
            yield "This is an estimate, because its inputs were not captured or it cannot be replayed."
    if module:
        yield f"It was called in {module}."
    if source:
        yield f"Its source is {source}"


def _errs(place: RootPlace) -> str:
    own, inherited = place.root.own, place.root.inherited
    if own is None or math.isnan(own):
        return f"{place.root.message}."
    if place.root.kind is RootKind.ESTIMATE:
        text = "it differs by more than its inputs and rounding explain,"
    else:
        text = "it errs on the very inputs that it got,"
    text += " beyond all rounding" if own == INFINITE else f" by {shown_error(own)} times"
    if own != INFINITE:
        text += " that" if place.root.kind is RootKind.ESTIMATE else " what rounding explains"
    if inherited is None or math.isnan(inherited):
        return f"{text}."
    if inherited == INFINITE:
        return f"{text}; its inputs brought more than any rounding with them."
    return f"{text}; its inputs brought {shown_error(inherited)} times a rounding error with them."


def _own(place: RootPlace) -> str:
    own = place.root.own
    if own is None or math.isnan(own) or place.root.kind in PLACES:
        return ""
    if own == INFINITE:
        return ", beyond all rounding"
    return f": {shown_error(own)} times what rounding explains"


def spread_sentences(findings: Findings) -> Iterator[str]:
    """Yield how many records the first root reached, and how many only pass an error on."""
    location = findings.location
    if location is None or not location.places:
        return
    records = sum(dump.located.records for dump in location.dumps)
    passed = sum(
        each.verdict == INHERITED for dump in location.dumps for each in dump.located.passed
    )
    root = location.places[0].root
    if root.reached:
        records_reached = f"{root.reached} more record{'' if root.reached == 1 else 's'}"
        yield f"What began at {root.key} reached {records_reached} of the same dump."
    else:
        yield f"What began at {root.key} is not seen to have reached another record."
    yield f"{passed} of {records} records only pass an error on and are not to blame."
