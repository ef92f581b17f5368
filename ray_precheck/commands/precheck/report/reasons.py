"""Counts the reasons why calls were not compared; reasons that differ in numbers and names only
count as one.

Comes in: Messages of result rows. Goes out: reasons with counts and some names. Called by the
summary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# How many different reasons are kept apart; all others are counted as one.
_MOST_KINDS = 10_000
NAMES_KEPT = 3
OTHER_REASONS = "other reasons"
# The parts in which two Messages of the same reason may differ: quoted or bracketed text, dotted
# names and paths, numbers. Each stands for one sign in the key.
_VARIABLES = re.compile(
    r"""'[^']*' | "[^"]*" | `[^`]*` | \[[^\]]*\] | \([^)]*\)
        | \w*(?:[./]\w+)+ | [-+]?\d[\w.]*""",
    re.VERBOSE,
)
_DIRECTIONS = ("forward: ", "backward: ")
# Two reasons are the same where so many characters are; messages may have millions.
_LOOKED_AT = 300
_BACKWARD = re.compile(r"(?:^|; )(backward: .*)")


@dataclass(slots=True)
class Reason:
    """A reason as the first call gives it, how many calls have it, and the first few names."""

    text: str
    count: int = 0
    names: list[str] = field(default_factory=list)


class Reasons:
    """Counts reasons as they come in."""

    def __init__(self) -> None:
        self._found: dict[str, Reason] = {}

    def add(self, name: str, text: str) -> None:
        """Count the reason of a call."""
        key = reason_key(name, text)
        if key not in self._found and len(self._found) >= _MOST_KINDS:
            key = text = OTHER_REASONS
        reason = self._found.setdefault(key, Reason(text))
        reason.count += 1
        if len(reason.names) < NAMES_KEPT:
            reason.names.append(name)

    def merge(self, others: "Reasons", prefix: str) -> None:
        """Count those of another run, too; its names begin with `prefix` then."""
        for key, other in others._found.items():
            if key not in self._found and len(self._found) >= _MOST_KINDS:
                key = OTHER_REASONS
            reason = self._found.setdefault(
                key, Reason(OTHER_REASONS if key == OTHER_REASONS else other.text)
            )
            reason.count += other.count
            names = [f"{prefix}{name}" for name in other.names]
            reason.names = (reason.names + names)[:NAMES_KEPT]

    def commonest(self, most: int) -> Sequence[Reason]:
        """Return the commonest reasons, those that came first before others of the same count."""
        return sorted(self._found.values(), key=lambda reason: -reason.count)[:most]

    def __len__(self) -> int:
        return len(self._found)


def why_not_compared(message: str, *, forward: bool) -> str:
    """Return the part of a Message that says why a direction was not compared.

    With `forward` the forward check was not compared: its reason is the whole Message. If only the
    backward check was not compared, the part about the forward check is left out.
    """
    found = None if forward else _BACKWARD.search(message)
    return (found[1] if found else message) or "no reason is given"


def reason_key(name: str, text: str) -> str:
    """Return a reason without its numbers and names, equal for reasons that differ in them alone.

    `name` is the name of the call; it, the API and its last part are left out. The text after the first
    colon or semicolon is left out, too: it has the words of a framework.
    """
    direction = next((word for word in _DIRECTIONS if text.startswith(word)), "")
    rest = text[len(direction) :][:_LOOKED_AT]
    clause = direction + re.split(r"[:;] ", rest, maxsplit=1)[0]
    for own in _own_names(name):
        clause = clause.replace(own, "#")
    return re.sub(r"#(?:\W*#)*", "#", _VARIABLES.sub("#", clause))


def _own_names(name: str) -> list[str]:
    """Return the names of a call, the longest first; a short last part may be a word of the text."""
    type_name = name.rsplit(".", 1)[0]
    api = type_name.rsplit(".", 1)[-1]
    return [each for each in (name, type_name, api) if each and (len(each) > 4 or "." in each)]
