"""The types that every command's module uses: the command, its invocation, and the parser's class.

Comes in: nothing. Goes out: types. A module of a command has `COMMANDS`, of which `parser` makes
parsers whose `execute` is that of the command.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import Option
from ray_precheck.options.exit_codes import STOPPED
from ray_precheck.options.going_on import resume_command


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
        """Keep the file or folder that `-csv_path` names to go on with the run."""
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
