"""The operators that a release registers from C++, by the schemas in its libraries.

Comes in: the texts that were found in an unpacked wheel's libraries. Goes out: the schemas of an operator,
and whether the arguments of our benches fit them. Called by the look-up. torch_npu registers an operator
with a text such as `npu_gelu(Tensor input, *, str approximate='none') -> Tensor`, which gives the names,
the order and the defaults of its parameters.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

# A line of a library's texts that is a schema.
SCHEMA = re.compile(r"(?:\w+::)?([a-z]\w*)(\.\w+)?\((.*)\) -> .+")
_KINDS = inspect.Parameter


def read_schemas(lines: Iterable[str]) -> dict[str, list[inspect.Signature]]:
    """Return the signatures of each operator, one for each overload."""
    found: dict[str, list[inspect.Signature]] = defaultdict(list)
    for line in lines:
        match = SCHEMA.fullmatch(line)
        if match is None:
            continue
        try:
            signature = _parameters(match[3])
        except ValueError:
            continue  # a text that only looks like a schema
        if signature not in found[match[1]]:
            found[match[1]].append(signature)
    return dict(found)


def _parameters(text: str) -> inspect.Signature:
    found = []
    kind = _KINDS.POSITIONAL_OR_KEYWORD
    for part in _split(text):
        if part == "*":
            kind = _KINDS.KEYWORD_ONLY
            continue
        name, equals, _ = part.rpartition(" ")[2].partition("=")
        if "=" in part and not equals:  # the default has a blank in it
            name, equals = part.partition("=")[0].rpartition(" ")[2], "="
        default = None if equals else _KINDS.empty
        found.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(found)


def _split(text: str) -> list[str]:
    """Return the parts of a list of parameters; commas in brackets and quotes do not part."""
    parts, depth, begin, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


@dataclass(frozen=True, slots=True)
class BenchSignature:
    """The parameters that a row of a bench takes: those given by position, and those by keyword alone."""

    places: tuple[str, ...]
    keywords: tuple[str, ...]


def bench_signature(text: str) -> BenchSignature:
    """Read a signature as the tables of benches write it (`frameworks.pytorch.signatures`)."""
    places: list[str] = []
    keywords: list[str] = []
    into = places
    for word in text.split():
        if word == "*":
            into = keywords
            continue
        match = re.match(r"\*?(\w+)", word)
        if match is None:
            raise ValueError(f"{word!r} in {text!r} is no parameter")
        into.append(match[1])
    return BenchSignature(tuple(places), tuple(keywords))


def not_taken(schema: inspect.Signature, rows: Iterable[BenchSignature]) -> list[str] | None:
    """Return the parameters of a schema that no row takes, by the row that takes most of it.

    None if every row has the parameters that it takes by position in another order than the schema.
    """
    best: list[str] | None = None
    for row in rows:
        missed = _missed(schema, row)
        if missed is not None and (best is None or len(missed) < len(best)):
            best = missed
    return best


def _missed(schema: inspect.Signature, row: BenchSignature) -> list[str] | None:
    missed: list[str] = []
    for number, parameter in enumerate(schema.parameters.values()):
        name = parameter.name
        if name not in (*row.places, *row.keywords):
            missed.append(name)
            continue
        is_place = parameter.kind is _KINDS.POSITIONAL_OR_KEYWORD
        # Values by position must arrive under the same names.
        if is_place and not missed and row.places[number : number + 1] != (name,):
            return None
    needed = [p.name for p in schema.parameters.values() if p.default is _KINDS.empty]
    return None if set(needed) & set(missed) else missed
