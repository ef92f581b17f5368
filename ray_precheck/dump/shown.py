"""Values of a dump as messages show them: on one line, printable and short.

Called wherever a message names a value of a dump. A dump is untrusted data: a value can be a text
of 10,000,000 characters, a list nested a thousand times, or a sequence that a terminal obeys.
"""

from typing import Any

LONGEST = 60


def printable(line: str) -> str:
    """Return a line of names and messages without control sequences, and without what has no encoding."""
    return line if line.isprintable() else ascii(line)[1:-1]


def shown(value: Any) -> str:
    """Return a value as Python writes it, cut to 60 characters."""
    if isinstance(value, str):
        value = value[: LONGEST + 1]
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: an int of more digits than Python writes
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
