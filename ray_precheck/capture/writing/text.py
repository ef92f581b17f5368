"""Values as JSON text, which the writers put together without building objects first.

Comes in: numbers and texts. Goes out: JSON, with NaN and the infinities as the bare words that Python's
own reader takes. Called for each element of a record, so it is written for speed.
"""

import json
from collections.abc import Iterable

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
quoted = json.encoder.encode_basestring_ascii


def number(value: float) -> str:
    """Return a float as JSON; what is not finite is `NaN`, `Infinity` or `-Infinity`."""
    text = repr(value)
    return text if text[-1] not in "nf" else _WORDS[text]


def scalar(value: float | int | bool | None) -> str:
    """Return a Python number, a truth value or None as JSON."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else repr(value)


def array(texts: Iterable[str]) -> str:
    """Return a JSON array of values that are texts already."""
    return f"[{', '.join(texts)}]"


def mapping(items: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object of names and of values that are texts already."""
    return "{" + ", ".join(f"{quoted(name)}: {text}" for name, text in items) + "}"
