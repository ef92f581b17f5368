"""The calls that the precheck of a diagnosis looks at.

Comes in: what the other parts have found. Goes out: `Suspect`s, the likeliest first. Called by the session.
"""

from collections.abc import Iterator

from ray_precheck.commands.diagnose.findings import Findings, Suspect
from ray_precheck.commands.locate.walk.roots import RootKind

_OPERATORS = (RootKind.NON_FINITE, RootKind.OPERATOR, RootKind.ESTIMATE)
_DIRECTIONS = (".forward", ".backward")
# Modules are no calls of operators, and collectives need the other ranks.
_NO_CALLS = ("Module.", "Cell.", "Distributed.", "MintDistributed.")


def suspects_of(findings: Findings) -> list[Suspect]:
    """Return operators to blame, then those that gave birth to NaN or infinity.

    Where the search for the operator to blame could not be done, the first calls that differ from the
    golden run come last.
    """
    by_label = {dump.label: dump for dump in findings.dumps}
    found: dict[tuple[str, str], None] = {}
    for label, key in (*_located(findings), *_born(findings), *_different(findings)):
        call = next((key.removesuffix(end) for end in _DIRECTIONS if key.endswith(end)), "")
        if call and not call.startswith(_NO_CALLS):
            found[label, call] = None
    return [Suspect(by_label[label], call) for label, call in found if label in by_label]


def _located(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.location is not None:
        for place in findings.location.places:
            if place.root.kind in _OPERATORS:
                yield place.dump.label, place.root.key


def _born(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.overflow is not None:
        yield from ((row.dump, row.api) for row in findings.overflow.rows if row.is_born)


def _different(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.location is None and findings.comparison is not None:
        for report in findings.comparison.reports:
            yield from ((report.label, row.name) for row in report.summary.first)
