"""What every command's module is made of: the parser's class, and the type of what runs a command.

Comes in: nothing. Goes out: types. A module of a command has `add_commands(commands)`, which adds
its parsers and sets their `execute` to an `Execute`; `parser` calls it.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from ray_precheck.errors import UsageError


class SentenceParser(argparse.ArgumentParser):
    """Reports a wrong option as one sentence, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

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
    """Say something on standard error that is no error."""
    print(f"ray-precheck: {text}", file=sys.stderr, flush=True)


Execute: TypeAlias = Callable[[argparse.Namespace, Invocation], int]
Commands: TypeAlias = "argparse._SubParsersAction[SentenceParser]"
