"""The table of the matrix, as Markdown, from what was found in its cells.

Comes in: the cells with what was found in each. Goes out: text. Called by `main`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scripts.matrix.attempt import lacks
from scripts.matrix.cells import Cell
from scripts.matrix.notes import CellResult
from scripts.matrix.trial import Precheck, Verdict, together

_HEAD = (
    "| cell | Python | torch | MindSpore | NumPy | ray | tests passed | run again | failed "
    "| skipped | calls with the default's verdicts | others |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)
_SHOWN = 6
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that has another verdict than in the default cell."""

    run: str
    api: str
    default: Verdict
    here: Verdict


def render(found: Mapping[str, CellResult], cells: Sequence[Cell], base: CellResult) -> str:
    """Return the table, what pip would install, and what fails, is skipped or differs, by cell.

    `found` is keyed by the cells' names; `base` is what was found in the default one.
    """
    known = [cell for cell in cells if cell.name in found]
    lines = [_HEAD, *(_row(cell, found[cell.name], base) for cell in known), ""]
    lines += ["### What `pip install .` brings beside each host's own packages", ""]
    lines += ["| cell | replaced | brought |", "|---|---|---|"]
    lines += [_plan_row(cell, found[cell.name]) for cell in known]
    lines += ["", "### What fails, is skipped or differs", ""]
    for cell in known:
        lines += _story(cell, found[cell.name], base)
    return "\n".join(lines) + "\n"


def changed_verdicts(found: CellResult, base: CellResult) -> list[Difference]:
    """Return the calls whose forward or backward verdict is another one than in the default cell.

    A call of which only one of the two has a row differs as well; captures that were not checked in
    both cells are left out, see `unchecked`.
    """
    differing = []
    for run, here in found.prechecks.items():
        there = base.prechecks.get(run)
        if not here.verdicts or not (there and there.verdicts):
            continue
        for api in sorted(here.verdicts.keys() | there.verdicts.keys()):
            ours = here.verdicts.get(api, ("no row", "", ""))
            theirs = there.verdicts.get(api, ("no row", "", ""))
            if ours[:2] != theirs[:2]:
                differing.append(Difference(run, api, theirs, ours))
    return differing


def unchecked(found: CellResult) -> dict[str, Precheck]:
    """Return the prechecks that gave no row."""
    return {run: here for run, here in found.prechecks.items() if not here.verdicts}


def _row(cell: Cell, found: CellResult, base: CellResult) -> str:
    versions = [found.versions.get(name, "-") for name in ("torch", "mindspore", "numpy", "ray")]
    cells = [cell.name, cell.python, *versions]
    if found.failure or not (found.tests or found.prechecks):
        return f"| {' | '.join(cells)} | {'not made' if found.failure else 'not tried'} | | | | | |"
    tests = together(list(found.tests.values()))
    rows = sum(len(here.verdicts) for here in found.prechecks.values())
    differing = len(changed_verdicts(found, base))
    cells += [str(tests.passed), str(tests.again), str(len(tests.failed))]
    cells += [str(sum(tests.skipped.values()))]
    return f"| {' | '.join([*cells, f'{rows - differing} of {rows}', str(differing)])} |"


def _plan_row(cell: Cell, found: CellResult) -> str:
    if found.failure:
        return f"| {cell.name} | | |"
    replaced = [
        f"{each.name} {each.replaces} by {each.version}" for each in found.plan if each.replaces
    ]
    brought = [f"{each.name} {each.version}" for each in found.plan if not each.replaces]
    return f"| {cell.name} | {', '.join(replaced) or 'nothing'} | {', '.join(brought)} |"


def _story(cell: Cell, found: CellResult, base: CellResult) -> Iterator[str]:
    """Yield what a row's numbers stand for."""
    yield f"**{cell.name}** ({found.date}, {found.machine})"
    yield ""
    if found.failure:
        yield f"- It could not be made: {found.failure}"
    elif missing := lacks(cell, found):
        yield f"- not run: {', '.join(f'`{piece}`' for piece in missing)}"
    if found.clashes:
        yield f"- `pip check`: {'; '.join(found.clashes.splitlines())}"
    tests = together(list(found.tests.values()))
    for name in tests.failed:
        yield f"- failed: `{name}`"
    for reason, count in sorted(tests.skipped.items()):
        yield f"- skipped {count}: {_short(reason)}"
    unchecked_by: dict[str, list[str]] = {}
    for run, here in unchecked(found).items():
        unchecked_by.setdefault(f"exit code {here.code}: {_short(here.said)}", []).append(run)
    for said, runs in unchecked_by.items():
        yield f"- not checked, {said} ({', '.join(runs)})"
    yield from _by_reason(changed_verdicts(found, base))
    yield ""


def _by_reason(differing: Sequence[Difference]) -> Iterator[str]:
    """Yield a line for each change of verdict with its reason, the runs and the calls that it befell."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for each in differing:
        change = f"{_verdicts(each.default)} -> {_verdicts(each.here)}"
        # The row with the trouble tells why.
        reason = _short(each.here[2] or each.default[2] or "no message")
        groups.setdefault((change, reason), []).append(each)
    for (change, reason), members in groups.items():
        names = sorted({each.api for each in members})
        runs = sorted({each.run for each in members})
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = f"{', '.join(names[:_SHOWN])}{more}"
        yield f"- {change} in {len(members)} rows of {', '.join(runs)}: {shown}: {reason}"


def _short(reason: str) -> str:
    """Return the beginning of a reason, which numbers of nodes and advice do not follow any more."""
    first = re.split(r", [Pp]lease | node: |; ", reason, maxsplit=1)[0]
    return first if len(first) <= _REASON_CHARS else f"{first[:_REASON_CHARS]}..."


def _verdicts(verdict: Verdict) -> str:
    return "/".join(part or "none" for part in verdict[:2])
