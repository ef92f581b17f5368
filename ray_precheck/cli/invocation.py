"""The types that every command's module uses: the command, its invocation, and the parser's class.

Comes in: nothing. Goes out: types. A module of a command has `COMMANDS`, of which `parser` makes
parsers whose `execute` is that of the command.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import Option


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
    """How a command was called: the arguments as `given`, and `announce`, which the command tells
    the result CSV once it is there."""

    given: tuple[str, ...]
    announce: Callable[[str], None]


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
