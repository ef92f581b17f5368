"""Options, each declared once, as the default of the field that holds its value:

    timeout_s: float = option(
        300.0, "--timeout", help="seconds for a record (default {default})", type=float, metavar="S"
    )

Comes in: classes with such fields. Goes out: their options (`options_of`), of which `options.commands` makes
the parser and `scripts.options` the tables of `cli/README.md`; the errors of wrong values (`require_valid`),
by the rule of each option, which is told the option and its value; and their entries in the settings file of
a run (`settings_of`).
"""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeVar

from ray_precheck.errors import UsageError

Rule: TypeAlias = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words, or several of them; a word with one of the `endings` too.

    `or_else` explains these endings in a message. With `may_be_empty` "" is fine. `all_choices` gives
    all words, where some of them take time to find: it is called for a word that is not among
    `choices`.
    """

    choices: tuple[str, ...]
    endings: tuple[str, ...] = ()
    or_else: str = ""
    may_be_empty: bool = False
    all_choices: Callable[[], tuple[str, ...]] | None = None

    def __call__(self, option: str, value: Any) -> None:
        """Raise where a value is none of the words.

        Raises:
            UsageError: names the option, the value and all words.
        """
        for word in value if isinstance(value, tuple | list) else (value,):
            if word in self.choices or (self.may_be_empty and word == ""):
                continue
            if isinstance(word, str) and word.endswith(self.endings):
                continue
            choices = self.all_choices() if self.all_choices else self.choices
            if word in choices:
                continue
            expected = ", ".join(filter(None, (*choices, self.or_else)))
            raise UsageError(f"{option} {word!r} is unknown; expected one of: {expected}")


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from `least` to `most`; `whole`: a whole number. None stands for the default.

    `above` excludes `least` itself. `what` names the number in a message.
    """

    what: str
    least: float = 0
    most: float = math.inf
    whole: bool = True
    above: bool = False

    def __call__(self, option: str, value: Any) -> None:
        """Require that a value is such a number.

        Raises:
            UsageError: it is not; names the option, the value and the expected numbers.
        """
        if value is None:
            return
        kind_of_number = Integral if self.whole else Real
        if not isinstance(value, bool) and isinstance(value, kind_of_number) and self._holds(value):
            return
        kind = "a whole number" if self.whole else "a finite number"
        least = f"larger than {self.least:g}" if self.above else f"at least {self.least:g}"
        most = "" if math.isinf(self.most) else f" and at most {self.most:g}"
        shown = repr(value) if len(repr(value)) <= _LONGEST_SHOWN else "a longer number"
        raise UsageError(f"{option} {shown} is wrong: {self.what} is {kind} {least}{most}")

    def _holds(self, value: Any) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            bool(value > self.least if self.above else value >= self.least) and value <= self.most
        )


_LONGEST_SHOWN = 40


T = TypeVar("T")
# The section of --help that stands last.
_HELP = "help"


class Takes(Enum):
    """The words that follow an option on the command line."""

    VALUE = "a value, of which the last one counts"
    ONCE = "a value, which may be given once"
    SEVERAL = "one or more values"
    EACH = "a value each time that it is given"
    PERHAPS = "a value or nothing"
    NOTHING = "nothing"
    REST = "all words that follow, whatever they are"


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """The option without which another option has no effect: its field, and a text for its value."""

    field: str
    what: str


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the command line, or an argument by its position where its name has no dash.

    `help` is its line of --help, in which `{default}` and `{choices}` are filled in; `more` is the
    rest of its cell in the table of the docs. `type` turns a word into a value, `becomes` turns
    that value into the value of the field. `rows` is its key in the settings file of a run, "" if its
    value changes no rows.
    `action` is a class of argparse's that stores the value in its own way. `field` and `section` are
    filled in by `options_of`: the field that holds the value, "" for an option of the command line
    alone, whose value is `default` if it is not given.
    """

    names: tuple[str, ...]
    help: str
    more: str = ""
    takes: Takes = Takes.VALUE
    metavar: str | None = None
    type: Callable[[str], Any] = str
    becomes: Callable[[Any], Any] | None = None
    rule: Rule | None = None
    needs: Prerequisite | None = None
    excludes: str = ""
    rows: str = ""
    required: bool = False
    action: Any = None
    default: Any = None
    section: str = ""
    field: str = ""

    @property
    def is_positional(self) -> bool:
        """Whether it is an argument by position, without a name."""
        return not self.names[0].startswith("-")

    @property
    def dest(self) -> str:
        """The name in argparse's namespace: as argparse makes it, of the first long name."""
        long = [name for name in self.names if name.startswith("--")]
        return (long or list(self.names))[0].lstrip("-").replace("-", "_")

    @property
    def text(self) -> str:
        """The help with the default and the choices in it."""
        default = f"{self.default:g}" if isinstance(self.default, float) else str(self.default)
        choices = "|".join(self.rule.choices) if isinstance(self.rule, OneOf) else ""
        return self.help.replace("{default}", default).replace("{choices}", choices)

    def require(self, value: object) -> None:
        """Require that a value is right.

        Raises:
            UsageError: it is wrong; names the option, the value and the expected values.
        """
        if self.rule is not None:
            self.rule(self.names[0], value)


def option(default: Any, *names: str, also: Option | None = None, **keywords: Any) -> Any:
    """Return the default of a field that options of the command line fill: `Option(names, **keywords)`.

    `also` is another option for the same field. A field with the default `REQUIRED` has none.
    """
    first = Option(names, required=default is REQUIRED, **keywords)
    declared = (first,) if also is None else (first, also)
    return field(default=default, metadata={_OPTIONS: declared})


REQUIRED: Any = MISSING
_OPTIONS = "options"


def options_of(holder: type) -> tuple[Option, ...]:
    """Return the options of a class, those of its own fields first, then those of its bases.

    The `section` of the class that declares a field is that of its options.
    """
    found: list[Option] = []
    own = {each.name: each for each in fields(holder)}
    for declaring in holder.__mro__:
        section = declaring.__dict__.get("section", "")
        for name in inspect.get_annotations(declaring):
            if name in own:
                declared = own.pop(name)
                found += (
                    replace(each, field=name, section=section, default=declared.default)
                    for each in declared.metadata.get(_OPTIONS, ())
                )
    return tuple(found)


def by_section(options: Iterable[Option]) -> tuple[Option, ...]:
    """Return options in the order of --help: those of one section together, those of help last."""
    found = list(options)
    sections = dict.fromkeys(each.section for each in found)
    ordered = [section for section in sections if section != _HELP] + [_HELP]
    return tuple(each for section in ordered for each in found if each.section == section)


def option_of(holder: type, name: str) -> Option:
    """Return the first option of a field."""
    return next(each for each in options_of(holder) if each.field == name)


def group_of(config: object, group: type[T]) -> T:
    """Return the values that a configuration has for a group of options, as an object of that group."""
    return group(**{each.name: getattr(config, each.name) for each in fields(group)})  # type: ignore[arg-type]


def require_valid(config: object) -> None:
    """Require that every value of an object with options is right.

    Raises:
        UsageError: a value is wrong; names the option, the value and the expected values.
    """
    for each in options_of(type(config)):
        value = getattr(config, each.field)
        each.require(value)
        needs = each.needs
        if needs is not None and value and getattr(config, needs.field) is None:
            needed = option_of(type(config), needs.field).names[0]
            raise UsageError(f"{each.names[0]} needs {needed}: {needs.what}")


def settings_of(config: object) -> dict[str, str]:
    """Return the entries of the settings file of a run: the options whose values change rows."""
    return {
        each.rows: _shown(getattr(config, each.field))
        for each in options_of(type(config))
        if each.rows
    }


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def ranges_of(numbers: Iterable[int]) -> str:
    """Return numbers as options of several take them: `0-7,9`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
