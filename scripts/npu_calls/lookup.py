"""Whether a release has what we use of it, and takes our arguments.

Comes in: a `Use` or a `Fact`, and an unpacked wheel. Goes out: a `Sighting`, or whether the text is there.
Called by the command. torch_npu registers an operator from C++ with a text in its libraries such as
`npu_gelu(Tensor input, *, str approximate='none') -> Tensor`, which gives the names, the order and the
defaults of its parameters.
"""

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch

from scripts.npu_calls.definitions import Definition
from scripts.npu_calls.evaluate import OR, Use
from scripts.npu_calls.explained import RESULTS
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.wheels import SCHEMA, Unpacked

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


# How torch_npu makes attributes of itself out of the operators that it registers.
_EXPORT = "dir(torch.ops.npu)"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Presence(Enum):
    """What a release has of a use."""

    PRESENT = "present"
    ANY = "present, takes any arguments"
    NATIVE = "from C++"
    NOT_TOLD = "not told"
    ARGUMENTS = "arguments"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was found, in which file. `more` has the parameters of an operator that no bench takes."""

    found: Presence
    file: str = ""
    more: tuple[str, ...] = ()


def look_up(use: Use, release: Unpacked) -> Sighting:
    """Return what a release has of a use; of alternatives, the first that it has."""
    if use.how == "operator":
        return _operator(use, release)
    name = use.name
    for made, result in RESULTS.items():
        name = result + name.removeprefix(made) if name.startswith(f"{made}.") else name
    for each in name.split(OR):
        found = release.wheel.find(each)
        if found is not None and use.how == "call" and found.kind == "instance":
            found = release.wheel.find(f"{each}.__call__")
        if found is not None:
            return _judged(use, found)
    return Sighting(Presence.MISSING)


def _judged(use: Use, found: Definition) -> Sighting:
    if found.kind == "result":
        return Sighting(Presence.NOT_TOLD, found.file)
    if found.kind == "native":
        return Sighting(Presence.NATIVE, found.file)
    if use.how != "call" or use.is_open:
        return Sighting(Presence.PRESENT, found.file)
    if found.signature is None:
        return Sighting(Presence.NATIVE, found.file)
    try:
        found.signature.bind(*[None] * use.positional, **dict.fromkeys(use.keywords))
    except TypeError:
        return Sighting(Presence.ARGUMENTS, found.file)
    return Sighting(Presence.ANY if _is_variadic(found.signature) else Presence.PRESENT, found.file)


def _is_variadic(signature: inspect.Signature) -> bool:
    return any(parameter.kind in _VARIADIC for parameter in signature.parameters.values())


def _operator(use: Use, release: Unpacked) -> Sighting:
    """Return whether an operator is there, and whether a bench takes its parameters."""
    defined = next(filter(None, map(release.wheel.find, use.name.split(OR))), None)
    if defined is not None:
        signatures = [defined.signature] if defined.signature is not None else []
        place = defined.file
    else:
        signatures = _schemas(release).get(use.name.rpartition(".")[2], [])
        place = "a library"
        if not signatures or not _exports(release):
            return Sighting(Presence.MISSING)
    rows = [bench_signature(text) for text in use.rows]
    if not signatures or any(map(_is_variadic, signatures)):
        return Sighting(Presence.NATIVE, place)
    if not rows:
        return Sighting(Presence.PRESENT, place)
    more: set[str] = set()
    for signature in signatures:
        missed = not_taken(signature, rows)
        if missed is None:
            return Sighting(Presence.ARGUMENTS, place)
        more |= set(missed)
    return Sighting(Presence.PRESENT, place, tuple(sorted(more)))


@functools.lru_cache(maxsize=32)
def _schemas(release: Unpacked) -> dict[str, list[inspect.Signature]]:
    return read_schemas(release.texts)


@functools.lru_cache(maxsize=32)
def _exports(release: Unpacked) -> bool:
    return _EXPORT in _python(release)


def has_fact(fact: Fact, release: Unpacked) -> bool:
    """Return whether the release has a file of the pattern, or names the text."""
    if fact.is_pattern:
        pattern = f"{release.package}/{fact.text}".replace("**/", "*")
        return any(fnmatch(name, pattern) for name in release.files)
    return any(fact.sought in text for text in release.texts) or fact.sought in _python(release)


@functools.lru_cache(maxsize=2)
def _python(release: Unpacked) -> str:
    """Return all Python files of a release as one text, in which quotes are double."""
    paths = sorted(release.wheel.folder.rglob("*.py"))
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return "\n".join(texts).replace("'", '"')
