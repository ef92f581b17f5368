"""Between declared options and argparse: adds options to a parser, with the actions that argparse lacks, and
reads the fields of a configuration from the words that it parsed.

Comes in: options (`ray_precheck.options`). Goes out: a parser that has them; values of the fields of a
configuration. Called by `cli` and by the modules of the commands.

What every command's module uses: the command, its invocation, exit codes, and the command that resumes it.
A module of a command has `COMMANDS`, of which `cli` makes parsers whose `execute` is that of the command.
"""

import argparse
import platform
import shlex
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ray_precheck import __version__
from ray_precheck.descriptors.descriptor import (
    framework_names,
    is_framework,
    versioned_distributions,
)
from ray_precheck.errors import UsageError
from ray_precheck.options.declared import Option, Takes, options_of
from ray_precheck.options.shared import DebugOptions, ResumeOptions
from ray_precheck.schema.result import Verdict

_Values = str | Sequence[Any] | None


class Taker(argparse.Action):
    """An action whose `take` alone says what becomes of the values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Have `take` deal with the values."""
        self.take(namespace, values, option_string)

    @abstractmethod
    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Deal with the values that follow an option, None for an option without any."""


class Once(Taker):
    """Stores a value, and refuses a second one, because it is unclear which of the two is meant."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store the value.

        Raises:
            UsageError: there is one already.
        """
        before = getattr(namespace, self.dest, self.default)
        if before is not self.default:
            raise UsageError(f"{option} is given twice, as {before} and as {values}; name one")
        setattr(namespace, self.dest, values)


class FrameworkName(Taker):
    """`-f` before the command: always the framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store the name, which is looked at with the other options.

        Raises:
            UsageError: it is the name of a command.
        """
        if str(values).endswith(("run_ut", "acc_check")):
            raise UsageError(
                f"{option} {values}: before the command {option} names the framework"
                f" ({'|'.join(framework_names())}); -f for --filter_api stands after the command"
            )
        setattr(namespace, self.dest, values)


class FilterOrFramework(Taker):
    """`-f` after the command: alone msprobe's --filter_api, with a name the framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Store which of the two it is.

        Raises: UsageError: the word that follows is no framework.
        """
        if values is None:
            namespace.filter_api = True
        elif isinstance(values, str) and is_framework(values):
            namespace.framework = values
        else:
            raise UsageError(
                f"{option} {values!r}: after the command, {option} alone means"
                f" --filter_api and {option} {'|'.join(framework_names())} names the framework;"
                f" {values!r} is neither"
            )


class Version(Taker):
    """Prints the installed versions and ends, without loading a framework."""

    def take(self, namespace: argparse.Namespace, values: _Values, option: str | None) -> None:
        """Print a line for each package and exit with 0."""
        for name, version in installed_versions().items():
            print(f"{name:13} {version}")
        raise SystemExit(0)


_COMPLETED = {
    "FILE": "FILE",
    "DUMP": "FILE",
    "CSV": "FILE",
    "YAML": "FILE",
    "JSON": "FILE",
    "FOLDER": "DIRECTORY",
}


class PrintCompletion(argparse.Action):
    """Prints the script by which a shell completes the command, and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: _Values,
        option_string: str | None = None,
    ) -> None:
        """Print the script for a shell and exit with 0.

        Raises:
            UsageError: there is none for such a shell.
        """
        import shtab

        if values not in shtab.SUPPORTED_SHELLS:
            there = ", ".join(shtab.SUPPORTED_SHELLS)
            raise UsageError(f"{option_string} {values}: there are scripts for {there}")

        for each in _parsers(parser):
            for action in each._actions:
                kind = _COMPLETED.get(str(action.metavar))
                if kind is not None:
                    vars(action)["complete"] = getattr(shtab, kind)
        print(shtab.complete(parser, str(values)))
        raise SystemExit(0)


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def installed_versions() -> dict[str, str]:
    """Return the versions of this package, of Python and of the frameworks, by name."""
    from importlib import metadata  # It brings the parser of e-mails, which --help does without.

    found = {"ray_precheck": __version__, "Python": platform.python_version()}
    for name in ("ray", *versioned_distributions()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


_KEYWORDS: dict[Takes, dict[str, Any]] = {
    Takes.VALUE: {},
    Takes.ONCE: {"action": Once},
    Takes.SEVERAL: {"nargs": "+"},
    Takes.EACH: {"action": "append"},
    Takes.PERHAPS: {"nargs": "?"},
    Takes.NOTHING: {"action": "store_true"},
    Takes.REST: {"nargs": argparse.REMAINDER},
}

OUT_FOLDER = Option(
    ("-o", "--out_path"),
    "folder of the results (default {default})",
    metavar="FOLDER",
    default="./",
)
# Of commands that start no Ray, whose output --debug would show.
DEBUG = Option(
    ("--debug",),
    "show tracebacks",
    takes=Takes.NOTHING,
    default=False,
    section=DebugOptions.section,
)
VERSION = Option(
    ("-V", "--version"),
    "show the versions of ray_precheck, Python, ray and the frameworks, and exit",
    takes=Takes.NOTHING,
    action=Version,
    section=DebugOptions.section,
)
PRINT_COMPLETION = Option(
    ("--print-completion",),
    "print the script by which a shell completes this command: bash, zsh or tcsh",
    metavar="SHELL",
    action=PrintCompletion,
    section=DebugOptions.section,
)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add options to a parser, those of one section as a group of its help."""
    groups: dict[str, Any] = {"": parser}
    for option in options:
        if option.section not in groups:
            groups[option.section] = parser.add_argument_group(option.section)
        _add(groups[option.section], option)


def _add(group: Any, option: Option) -> None:
    keywords: dict[str, Any] = {"help": option.text.replace("%", "%%"), **_KEYWORDS[option.takes]}
    if option.takes is not Takes.NOTHING:
        keywords |= {"type": option.type, "metavar": option.metavar}
    if option.action is not None:
        keywords["action"] = option.action
        if option.takes is Takes.NOTHING:
            keywords["nargs"] = 0
    if not option.is_positional:
        # A field's default stands in its class: of an option that is not given nothing is stored.
        default = argparse.SUPPRESS if option.field or option.action else option.default
        keywords |= {"dest": option.dest, "required": option.required, "default": default}
    group.add_argument(*option.names, **keywords)


def given_values(given: argparse.Namespace, config: type) -> dict[str, Any]:
    """Return the fields of a configuration that options were given for, with their values.

    Raises:
        UsageError: two options were given for one field.
    """
    values: dict[str, Any] = {}
    for option in options_of(config):
        if not hasattr(given, option.dest):
            continue
        if option.field in values:
            names = [each.names[0] for each in options_of(config) if each.field == option.field]
            raise UsageError(f"{' and '.join(names)} exclude each other: {option.excludes}")
        value = getattr(given, option.dest)
        if option.takes in (Takes.SEVERAL, Takes.EACH):
            value = tuple(value)
        values[option.field] = value if option.becomes is None else option.becomes(value)
    return values


PASSED, IN_ERROR, UNUSABLE, STOPPED, NOTHING_CHECKED = 0, 1, 2, 3, 4

# From the worst to the best.
_BY_BADNESS = (STOPPED, IN_ERROR, UNUSABLE, NOTHING_CHECKED, PASSED)

EXIT_CODES = (
    "exit codes: 0 nothing that was checked is in error, 1 some API is in error, 2 wrong usage or"
    " input, 3 stopped, resumable, 4 finished, but nothing could be checked"
)
COMPARE_EXIT_CODES = (
    "exit codes: 0 none in error, 1 some output is in error, 2 wrong usage or input, 4 nothing could"
    " be compared"
)


def code_of(verdicts: Collection[Verdict]) -> int:
    """Return the exit code of what was judged to its end."""
    if Verdict.ERROR in verdicts:
        return IN_ERROR
    return PASSED if Verdict.PASS in verdicts else NOTHING_CHECKED


def worst_code(*codes: int) -> int:
    """Return the exit code of several runs: that of the worst one."""
    return min(codes, key=_BY_BADNESS.index)


class SentenceParser(argparse.ArgumentParser):
    """Reports a wrong option as one sentence, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Raise an error with the text that argparse would print.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message} (see ray-precheck --help)")


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a command was called: the arguments as `given`. What it `told` is the file or folder to go on
    with, once that is there; `announce` passes it on to the guardian."""

    given: tuple[str, ...]
    announce: Callable[[str], None] = lambda text: None
    told: list[str] = field(default_factory=list)

    def tell(self, path: Path) -> None:
        """Keep the file or folder that `-csv_path` names to resume the run."""
        self.told.append(str(path))
        self.announce(str(path))

    def stopped(self, reason: str) -> int:
        """Say that the run stopped before its end, for a reason or ("") on request, and how to go on; return
        the exit code."""
        because = f": {reason}" if reason else ""
        print(f"\nStopped before the end{because}.{' To go on:' if self.told else ''}")
        if self.told:
            print(f"  {resume_command(self.given, Path(self.told[-1]))}")
        return STOPPED


def note(text: str) -> None:
    """Print a note on standard error that is no error."""
    print(f"ray-precheck: {text}", file=sys.stderr, flush=True)


Execute: TypeAlias = Callable[[argparse.Namespace, Invocation], int]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the command line.

    `names` have a line of --help each. `options` are in the order of --help, `epilog` ends it.
    --help of the command begins with `description`, by default the line of its name.
    """

    names: Mapping[str, str]
    options: tuple[Option, ...]
    execute: Execute
    epilog: str
    description: str = ""


# Left out of the command that resumes: the CSV is named anew, and rows that a resume has dropped or
# accepted once stay so (a second --retry would drop the rows that the first one has done again).
_RESUME_OPTIONS = tuple(name for each in options_of(ResumeOptions) for name in each.names)


def resume_command(given: Sequence[str], result: Path) -> str:
    """Return the command that resumes a stopped run: the same, with `-csv_path`."""
    kept: list[str] = []
    leaves_out = False
    own = given[: given.index("--")] if "--" in given else given
    for argument in own:
        if argument.startswith("-"):
            option = argument.partition("=")[0]  # which may be abbreviated
            is_one = any(name.startswith(option) for name in _RESUME_OPTIONS)
            leaves_out = is_one and option not in ("-", "--")
        if not leaves_out:
            kept.append(argument)
    return shlex.join(["ray-precheck", *kept, "-csv_path", str(result), *given[len(own) :]])
