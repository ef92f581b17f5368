"""How the inputs of an operator are generated, argument by argument, as sentences.

Comes in: the rows of the table of roles. Goes out: lines of text. Called by
`commands.explain.explanation`. The docstring of a rule is the sentence on its argument.
"""

import sys
from collections.abc import Iterator

from ray_precheck.inputs.roles.role import Role, Within
from ray_precheck.inputs.roles.rules import RoleRow, Rule

_OPENINGS = ("Return the rule of ", "Return the role of ")


def input_lines(rows: tuple[RoleRow, ...]) -> Iterator[str]:
    """Yield a line for each argument that is more than numbers of its recorded range."""
    for row in rows:
        for argument, rule in row.rules.items():
            yield f"{argument.replace('|', ' or ')}: {_role_of(rule)}"
    others = "all other tensors" if rows else "all tensors"
    yield f"{others}: numbers of the recorded range, dtype and shape (--distribution says how)"


def _role_of(rule: Rule) -> str:
    maker = getattr(rule, "__qualname__", "").partition(".")[0]
    if maker == "always":
        cells = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
        return next((_always(cell) for cell in cells if isinstance(cell, Role)), "")
    module = sys.modules[rule.__module__]
    text = " ".join((getattr(module, maker).__doc__ or "").split())
    for opening in _OPENINGS:
        text = text.removeprefix(opening)
    return text.rstrip(".")


def _always(role: Role) -> str:
    if isinstance(role, Within):
        where = ", where the recorded range is unknown" if role.only_unknown else ""
        return f"numbers from {role.low:g} to {role.high:g}{where}"
    text = " ".join((type(role).__doc__ or "").split())
    return (text[:1].lower() + text[1:]).rstrip(".")
