"""Values of a dump as messages show them: on one line, printable and short.

Called wherever a message names a value of a dump. A dump is untrusted data: a value can be a text
of 10,000,000 characters, a list nested a thousand times, or a sequence that a terminal obeys.
"""

from typing import Any

LONGEST = 60
# What a terminal obeys: control characters but tabs and the ends of lines, and marks that turn text round.
_CONTROLS = {
    code: f"\\u{code:04x}"
    for codes in (
        (0, 9),
        (11, 13),
        (14, 32),
        (127, 160),
        (0x200E, 0x2010),
        (0x2028, 0x202F),
        (0x2066, 0x206A),
    )
    for code in range(*codes)
}


def without_controls(text: str) -> str:
    r"""Return a text with `\u001b` in the place of the characters that a terminal obeys; lines stay lines."""
    return text.translate(_CONTROLS)


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
