"""The switches of a command, and what they make of it.

Comes in: the words of `--switch`, or the lines of a file of them, and the command. Goes out: a `Wiring`,
which turns a set of switches that are on into words, an environment and files. Called by the target `run`.

    env:NAME=ON|OFF         the variable NAME, which is removed where nothing stands on a side
    arg:ON|OFF              words of the command: where ON stands in it OFF takes its place, else they are
                            put behind it; `arg:--flag` for nothing where it is off
    line:FILE:TEXT          the lines of FILE with this text: trials have a copy without those that are off
    py:MODULE.NAME=ON|OFF   an attribute of a Python module, set once a Python of the command has imported
                            it, and left as it is where nothing stands on a side
    list:NAME[:FILE...]     the switches of a ready list (`lists`)
"""

import ast
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from ray_precheck.commands.bisect.targets.command.lists import LIST, PASS, Listed, listed_switches
from ray_precheck.errors import UsageError
from ray_precheck.foreign import read_file
from ray_precheck.searching.bisection import RungSwitch

_FORMS = {
    "env": "env:NAME=ON|OFF",
    "arg": "arg:ON|OFF",
    "line": "line:FILE:TEXT",
    "py": "py:MODULE.NAME=ON|OFF",
    LIST: "list:NAME[:FILE...]",
}
# A folder whose sitecustomize sets attributes in the Pythons of a trial, and where it tells of them.
_SITE = Path(__file__).with_name("site")
ATTRIBUTES = "attributes"
# In front of a path in a word, and behind it, stands none of these: it is a path of its own.
_IN_PATHS = r"[\w./-]"


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

    @property
    def files(self) -> tuple[str, ...]:
        """The files of which trials have a copy."""
        found = (each.target for each in self.wired.values() if each.kind in ("line", PASS))
        return tuple(dict.fromkeys(found))

    def command_of(
        self, enabled: frozenset[str], env: Mapping[str, str], folder: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words and the environment of a trial, and write its files into `folder`.

        Raises:
            UsageError: a file can no longer be read.
        """
        words, changed = list(self.command), dict(env)
        sides: dict[str, list[tuple[Wired, bool]]] = {path: [] for path in self.files}
        attributes: list[str] = []
        for name, wired in self.wired.items():
            is_on = name in enabled
            value = wired.on if is_on else wired.off
            if wired.kind == "env" and value:
                changed[wired.target] = value
            elif wired.kind == "env":
                changed.pop(wired.target, None)
            elif wired.kind == "arg":
                words = _with_words(words, shlex.split(wired.on), shlex.split(value))
            elif wired.kind == "py":
                attributes += [f"{wired.target}={value}"] if value else []
            else:
                sides[wired.target].append((wired, is_on))
        for number, (path, given) in enumerate(sides.items()):
            copy = _copied(Path(path), given, folder / f"file{number}")
            words = [with_path(word, path, copy) for word in words]
            changed = {name: with_path(value, path, copy) for name, value in changed.items()}
        if attributes:
            before = changed.get("PYTHONPATH", "")
            changed["PYTHONPATH"] = f"{_SITE}:{before}" if before else str(_SITE)
            changed["BISECT_ATTRIBUTES"] = "\n".join(attributes)
            changed["BISECT_ATTRIBUTES_TOLD"] = str(folder / ATTRIBUTES)
        return words, changed

    def unnamed_files(self, env: Mapping[str, str]) -> list[str]:
        """Return the files that neither the command nor the environment names, so that the command cannot
        see the copies of trials."""
        words = [*self.command, *env.values()]
        other = Path("copy")
        return [
            path
            for path in self.files
            if all(with_path(word, path, other) == word for word in words)
        ]


def _with_words(words: Sequence[str], on: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return words with `now` in the place of `on`, or behind them where `on` is not among them."""
    found = _place_of(words, on)
    begin, end = (len(words), len(words)) if found is None else (found, found + len(on))
    return [*words[:begin], *now, *words[end:]]


def _place_of(words: Sequence[str], part: Sequence[str]) -> int | None:
    size = len(part)
    places = range(1, len(words) - size + 1) if size else ()
    return next((place for place in places if list(words[place : place + size]) == part), None)


def with_path(word: str, path: str, copy: Path) -> str:
    """Return a word in which a path, as it was given or absolute, is replaced by that of its copy."""
    forms = {path, str(Path(path).absolute()), f"./{path}"}
    either = "|".join(re.escape(each) for each in sorted(forms, key=len, reverse=True))
    return re.sub(f"(?<!{_IN_PATHS})(?:{either})(?!{_IN_PATHS})", lambda _: str(copy), word)


def _copied(path: Path, sides: Sequence[tuple[Wired, bool]], folder: Path) -> Path:
    """Write a copy of a file into a folder, with what is switched off changed; return its path."""
    folder.mkdir()
    copy = folder / path.name
    if sides[0][0].kind == PASS:
        copy.write_text(_switched(path, sides))
        return copy
    gone = {wired.on for wired, is_on in sides if not is_on}
    left = [line for line in _lines_of(path) if line.strip() not in gone]
    copy.write_bytes("".join(left).encode(errors="surrogateescape"))
    shutil.copymode(path, copy)
    return copy


def _switched(path: Path, sides: Sequence[tuple[Wired, bool]]) -> str:
    """Return the text of a fusion_switch.cfg with passes on and off; others are as they were. `ALL` may only
    be off: where it is on it is left out."""
    content = json.loads("".join(_lines_of(path)))
    for wired, is_on in sides:
        kind, _, name = wired.on.partition(".")
        passes = content["RungSwitch"].setdefault(kind, {})
        passes.pop(name, None)
        if not (name == "ALL" and is_on):
            passes[name] = "on" if is_on else "off"
    return json.dumps(content, indent=4) + "\n"


def _lines_of(path: Path) -> list[str]:
    """Return the lines of a file with their ends, bytes that are no UTF-8 as surrogates.

    Raises:
        UsageError: it cannot be read; names the nearest one.
    """
    try:
        text = read_file(path).decode("utf-8", errors="surrogateescape")
    except OSError as error:
        there = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        nearest = _nearest(path.name, there)
        raise UsageError(f"cannot read {path}: {error.strerror}{nearest}") from None
    return re.findall("[^\n]*\n|[^\n]+", text)


def _nearest(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, 2)
    return f"; the nearest is {' or '.join(map(repr, near))}" if near else ""


def parse_switches(
    asked: Sequence[str], command: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[RungSwitch, ...], Wiring]:
    """Return switches of words like `env:NAME=on|off`; their names are the words.

    Raises:
        UsageError: a word is none of them, or is given twice.
    """
    wired: dict[str, Wired] = {}
    switches: list[RungSwitch] = []
    for word in asked:
        for name, each, hits in _wired_of(word, command, env):
            if name in wired:
                raise UsageError(f"--switch {name} is given twice")
            wired[name] = each
            switches.append(RungSwitch(name, hits=hits, lines=tuple(_lines(each))))
    return tuple(switches), Wiring(wired, tuple(command))


def _wired_of(
    word: str, command: Sequence[str], env: Mapping[str, str]
) -> Iterator[tuple[str, Wired, int | None]]:
    kind, colon, rest = word.partition(":")
    if not colon or kind not in _FORMS or not rest:
        forms = ", ".join(_FORMS.values())
        raise UsageError(
            f"--switch {word!r} is no switch{_nearest(kind, list(_FORMS))}; expected {forms}"
        )
    if kind != LIST:
        yield word, _parsed(word, kind, rest), None
        return
    for each in listed_switches(rest, command, env):
        yield each.word, _listed(each), each.hits


def _listed(each: Listed) -> Wired:
    kind, _, rest = each.word.partition(":")
    return Wired(PASS, each.file, rest, "") if kind == PASS else _parsed(each.word, kind, rest)


def _parsed(word: str, kind: str, rest: str) -> Wired:
    if kind == "arg":
        on, _, off = rest.partition("|")
        for side in (on, off):
            _require_words(word, side)
        return Wired(kind, "", on, off)
    if kind == "line":
        path, colon, text = rest.partition(":")
        if not colon or not text.strip():
            raise UsageError(f"--switch {word!r} names no line; expected {_FORMS[kind]}")
        there = [line.strip() for line in _lines_of(Path(path))]
        if text.strip() not in there:
            nearest = _nearest(text.strip(), there)
            raise UsageError(f"--switch {word}: {path} has no line {text.strip()!r}{nearest}")
        return Wired(kind, path, text.strip(), "")
    target, equals, values = rest.partition("=")
    on, bar, off = values.partition("|")
    if not target or not equals or not bar or (kind == "py" and "." not in target):
        raise UsageError(f"--switch {word!r} says not what is on and off; expected {_FORMS[kind]}")
    if on == off:
        raise UsageError(f"--switch {word}: on and off are the same; expected {_FORMS[kind]}")
    if kind == "py":
        for side in filter(None, (on, off)):
            _require_literal(word, side)
    return Wired(kind, target, on, off)


def _require_words(word: str, side: str) -> None:
    try:
        shlex.split(side)
    except ValueError as error:
        raise UsageError(f"--switch {word!r}: {side!r} are no words of a shell: {error}") from None


def _require_literal(word: str, side: str) -> None:
    try:
        ast.literal_eval(side)
    except (ValueError, SyntaxError):
        raise UsageError(
            f"--switch {word}: {side!r} is no value of Python; write a number, True, False, None or a"
            " text in quotes"
        ) from None


def _lines(wired: Wired) -> Iterator[tuple[str, str]]:
    """Yield how a switch is switched off for good."""
    kind, target, on, off = wired
    if kind == "env":
        yield "shell", f"export {target}={shlex.quote(off)}" if off else f"unset {target}"
    elif kind == "arg":
        yield "shell", " and ".join(filter(None, (on and f"leave out {on}", off and f"give {off}")))
    elif kind == "line":
        yield "file", f"{target}: remove the line {on!r}"
    elif kind == PASS:
        kind, _, name = on.partition(".")
        yield "file", f'{target}: {{"Switch": {{"{kind}": {{"{name}": "off"}}}}}}'
    elif off:
        yield "Python", f"import {target.partition('.')[0]}; {target} = {off}"
    else:
        yield "Python", f"leave out {target} = {on}"


def switches_in(path: Path) -> list[str]:
    """Return the words of a file of switches: one in a line, of which those that begin with `#` are comments.

    Raises:
        UsageError: it cannot be read.
    """
    lines = (line.strip() for line in _lines_of(path))
    return [line for line in lines if line and not line.startswith("#")]
