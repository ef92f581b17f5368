"""Whether a release has what we use of it, and takes our arguments.

Comes in: a `Use` or a `Fact`, and an unpacked wheel. Goes out: a `Sighting`, or whether the text is there.
Called by the command.
"""

import functools
import inspect
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch

from scripts.npu_calls.definitions import Definition
from scripts.npu_calls.evaluate import OR
from scripts.npu_calls.explained import RESULTS
from scripts.npu_calls.facts import Fact
from scripts.npu_calls.schemas import bench_signature, not_taken, read_schemas
from scripts.npu_calls.uses import Use
from scripts.npu_calls.wheels import Unpacked

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
