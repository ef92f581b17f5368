"""What every command's module uses: the command, its invocation, exit codes, and the command that resumes it.

Comes in: nothing. Goes out: types and codes. A module of a command has `COMMANDS`, of which `cli` makes
parsers whose `execute` is that of the command.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import Option, options_of
from ray_precheck.options.job import ResumeOptions
from ray_precheck.schema.result import Verdict

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
    for argument in given:
        if argument.startswith("-"):
            leaves_out = _is_resume_option(argument.partition("=")[0])
        if not leaves_out:
            kept.append(argument)
    return shlex.join(["ray-precheck", *kept, "-csv_path", str(result)])


def _is_resume_option(option: str) -> bool:
    """Return whether an option, which may be abbreviated, is one of a resume."""
    return any(name.startswith(option) for name in _RESUME_OPTIONS) and option not in ("-", "--")
