"""The switches of a command, and what they make of it.

Comes in: the words of `--switch`, or the lines of a file of them. Goes out: a `Wiring`, which turns a set of
switches that are on into words, an environment and files. Called by the target `run`.

    env:NAME=ON|OFF     the variable NAME, which is removed where nothing stands on a side
    arg:ON|OFF          words behind the command; `arg:--flag` for nothing where it is off
    line:FILE:TEXT      a line of FILE: trials have a copy of it, without the lines that are off
    py:MODULE.NAME=ON|OFF   an attribute of a Python module, set where a Python of the command imports it
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.searching.bisection import Switch

KINDS = ("env", "arg", "line", "py")
_FORMS = "env:NAME=ON|OFF, arg:ON|OFF, line:FILE:TEXT or py:MODULE.NAME=ON|OFF"
# Set for the Pythons of a trial: the attributes to set, by the modules' names.
_SITE = Path(__file__).with_name("site")


class Wired(NamedTuple):
    """A switch of a command. `target` is the variable, the file or the attribute; "" for words."""

    kind: str
    target: str
    on: str
    off: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """The switches of a command by their names."""

    wired: Mapping[str, Wired]
    command: tuple[str, ...]

    def command_of(
        self, enabled: frozenset[str], env: Mapping[str, str], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words and the environment of a trial, and write its files into `folder`."""
        words, changed = list(self.command), dict(env)
        copies: dict[str, list[str]] = {}
        attributes: list[str] = []
        for name, (kind, target, on, off) in self.wired.items():
            value = on if name in enabled else off
            if kind == "env" and value:
                changed[target] = value
            elif kind == "env":
                changed.pop(target, None)
            elif kind == "arg":
                words += shlex.split(value)
            elif kind == "line":
                copies.setdefault(target, [])
                if name not in enabled:
                    copies[target].append(on)
            else:
                attributes.append(f"{target}={value}")
        for path, gone in copies.items():
            copy = _copied(Path(path), gone, folder)
            words = [word.replace(path, str(copy)) for word in words]
            changed = {name: value.replace(path, str(copy)) for name, value in changed.items()}
        if attributes:
            before = changed.get("PYTHONPATH", "")
            changed["PYTHONPATH"] = f"{_SITE}:{before}" if before else str(_SITE)
            changed["BISECT_ATTRIBUTES"] = "\n".join(attributes)
        return words, changed


def _copied(path: Path, gone: Sequence[str], folder: Path) -> Path:
    """Write a copy of a file without some of its lines."""
    left = [line for line in _lines_of(path) if line.strip() not in gone]
    copy = folder / path.name
    copy.write_text("".join(left), encoding="utf-8")
    return copy


def _lines_of(path: Path) -> list[str]:
    try:
        return read_file(path).decode("utf-8", errors="surrogateescape").splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def parse_switches(asked: Sequence[str]) -> tuple[tuple[Switch, ...], dict[str, Wired]]:
    """Return switches of words like `env:NAME=on|off`; their names are the words.

    Raises:
        UsageError: a word is none of them, or is given twice.
    """
    wired: dict[str, Wired] = {}
    for word in asked:
        if word in wired:
            raise UsageError(f"--switch {word} is given twice")
        wired[word] = _parsed(word)
    switches = tuple(Switch(name, lines=tuple(_lines(each))) for name, each in wired.items())
    return switches, wired


def _parsed(word: str) -> Wired:
    kind, colon, rest = word.partition(":")
    if not colon or kind not in KINDS or not rest:
        raise UsageError(f"--switch {word!r} is no switch; expected {_FORMS}")
    if kind == "arg":
        on, _, off = rest.partition("|")
        return Wired(kind, "", on, off)
    if kind == "line":
        path, colon, text = rest.partition(":")
        if not colon or not text.strip():
            raise UsageError(f"--switch {word!r} names no line; expected line:FILE:TEXT")
        if text.strip() not in (line.strip() for line in _lines_of(Path(path))):
            raise UsageError(f"--switch {word}: {path} has no line {text.strip()!r}")
        return Wired(kind, path, text.strip(), "")
    target, equals, values = rest.partition("=")
    on, bar, off = values.partition("|")
    if not equals or not bar or (kind == "py" and "." not in target):
        raise UsageError(f"--switch {word!r} says not what is on and off; expected {_FORMS}")
    return Wired(kind, target, on, off)


def _lines(wired: Wired) -> Iterator[tuple[str, str]]:
    kind, target, on, off = wired
    if kind == "env":
        yield "shell", f"export {target}={shlex.quote(off)}" if off else f"unset {target}"
    elif kind == "arg":
        yield "shell", f"leave out {on}" + (f", give {off}" if off else "")
    elif kind == "line":
        yield "file", f"{target}: remove the line {on!r}"
    else:
        yield "Python", f"import {target.rpartition('.')[0]}; {target} = {off}"


def switches_in(path: Path) -> list[str]:
    """Return the words of a file of switches: one in a line, `#` begins a comment.

    Raises:
        UsageError: it cannot be read.
    """
    lines = (line.partition("#")[0].strip() for line in _lines_of(path))
    return [line for line in lines if line]
