"""From the arguments of a process to its exit code.

Comes in: arguments. Goes out: an exit code (`options.commands`). Errors are one sentence on standard
error. Called as `ray-precheck`, as `python -m ray_precheck`, and by tests.

Standard output and standard error that survive a reader who leaves early (`... | head -1`), and any text. A
run must not end because its reader has left: its rows are in its files, and its exit code sums them up. So
the code of a command whose reader has left is the command's own, and nothing is printed about it. Names of
a dump and of folders may have characters that a terminal obeys, and bytes that are no text: both are
written as escapes.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ray_precheck.cli.guardian import guard
from ray_precheck.commands.bisect import command as bisect
from ray_precheck.commands.capture import command as capture
from ray_precheck.commands.compare import command as compare
from ray_precheck.commands.compare_results import command as compare_results
from ray_precheck.commands.diagnose import command as diagnose
from ray_precheck.commands.explain import command as explain
from ray_precheck.commands.export import command as export
from ray_precheck.commands.inspect import command as inspect
from ray_precheck.commands.inspect.options import WORDS
from ray_precheck.commands.locate import command as locate
from ray_precheck.commands.naive import command as naive
from ray_precheck.commands.overflow import command as overflow_check
from ray_precheck.commands.overflow import replay_command as run_overflow_check
from ray_precheck.commands.precheck import command as run_ut
from ray_precheck.commands.precheck import summary_command as summary
from ray_precheck.commands.ranks import command as ranks
from ray_precheck.commands.report import command as report
from ray_precheck.commands.repro import command as repro
from ray_precheck.dump.folders import cuts_told
from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.foreign import shown, without_controls
from ray_precheck.options.commands import (
    EXIT_CODES,
    NOTHING_CHECKED,
    PASSED,
    PRINT_COMPLETION,
    STOPPED,
    VERSION,
    Execute,
    FrameworkName,
    Invocation,
    SentenceParser,
    add_options,
    resume_command,
)
from ray_precheck.options.declared import Takes, option_of
from ray_precheck.replay.config import RunConfig
from ray_precheck.runtime.stop_signal import interrupted_by_signals
from ray_precheck.schema.environment import INVOKED

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def outlive_readers() -> None:
    """Replace standard output and standard error by streams that drop text once their reader has
    left.

    A stream that is closed from the beginning (`2>&-`) drops everything. Text that cannot be
    written for another reason is dropped on standard error, which holds no results, and is an error
    on standard output.
    """
    sys.stdout = _patient(sys.stdout, loses_all=False)
    sys.stderr = _patient(sys.stderr, loses_all=True)


def _patient(stream: TextIO | None, *, loses_all: bool) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    stream.flush()
    raw = _Outlet(stream.fileno(), loses_all=loses_all)
    return _Screen(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=loses_all or stream.isatty(),
    )


class _Screen(io.TextIOWrapper):
    """A stream of text without control characters but for the ends of lines and the progress bar's."""

    def write(self, text: str) -> int:
        super().write(without_controls(text))
        return len(text)


class _Outlet(io.RawIOBase):
    """A file descriptor that leads nowhere once its reader has left."""

    def __init__(self, fd: int, *, loses_all: bool) -> None:
        self._fd = fd
        self._lost: type[OSError] = OSError if loses_all else BrokenPipeError

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return os.write(self._fd, data)
        except OSError as error:
            # Also where it is raised: once, not again when Python flushes at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._fd)
            os.close(nowhere)
            if not isinstance(error, self._lost):
                raise
            return memoryview(data).nbytes


# In the order of --help.
COMMANDS = (
    *capture.COMMANDS,
    *run_ut.COMMANDS,
    *overflow_check.COMMANDS,
    *run_overflow_check.COMMANDS,
    *naive.COMMANDS,
    *report.COMMANDS,
    *summary.COMMANDS,
    *explain.COMMANDS,
    *repro.COMMANDS,
    *inspect.COMMANDS,
    *export.COMMANDS,
    *compare.COMMANDS,
    *locate.COMMANDS,
    *ranks.COMMANDS,
    *diagnose.COMMANDS,
    *bisect.COMMANDS,
    *compare_results.COMMANDS,
)
_NAMES = tuple(name for command in COMMANDS for name in command.names)
_BEFORE_THE_COMMAND = (
    replace(option_of(RunConfig, "framework"), action=FrameworkName, section=""),
    replace(VERSION, section=""),
    replace(PRINT_COMPLETION, section=""),
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = SentenceParser(
        prog="ray-precheck",
        description="Find the operators of a training step that are numerically wrong on a device.",
        epilog=EXIT_CODES,
    )
    add_options(parser, _BEFORE_THE_COMMAND)
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        for name, text in command.names.items():
            own = parsers.add_parser(
                name,
                help=text,
                description=command.description or text,
                epilog=command.epilog,
            )
            add_options(own, command.options)
            own.set_defaults(execute=command.execute)
    return parser


def entry() -> int:
    """Run the command of this process, watched over by a guardian; return the exit code."""
    given = sys.argv[1:]
    outlive_readers()
    if _is_unguarded(given):
        return main(given)

    def epitaph(result: str, how: str) -> None:
        print(f"\nray-precheck: error: the process of the run was ended ({how})", file=sys.stderr)
        _say_how_to_resume(given, result)

    return guard(lambda announce: main(given, announce, is_own=True), epitaph)


def _ends_in_order(given: Sequence[str], is_own: bool) -> AbstractContextManager[None]:
    return nullcontext() if _is_unguarded(given) else interrupted_by_signals(is_own=is_own)


def _say_how_to_resume(given: Sequence[str], result: str) -> None:
    if result and Path(result).exists():
        print("All acknowledged rows are on disk. To go on:", file=sys.stderr)
        print(f"  {resume_command(given, Path(result))}", file=sys.stderr)


def _is_unguarded(given: Sequence[str]) -> bool:
    """Return whether a command keeps its own signals, children and end: a script's, or those of a prompt in
    the foreground of its terminal."""
    return next((word for word in given if word in _NAMES), "") in ("capture", "inspect")


def _require_command(given: Sequence[str]) -> None:
    """Raise where the first word that is no option names no command; names the nearest.

    Raises:
        UsageError: there is no such command.
    """
    with_value = {
        name
        for option in _BEFORE_THE_COMMAND
        if option.takes is not Takes.NOTHING
        for name in option.names
    }
    words = iter(given)
    for word in words:
        if word in with_value:
            next(words, None)
        elif not word.startswith("-"):
            if word not in _NAMES:
                raise UsageError(_unknown_command(word))
            return


def _unknown_command(word: str) -> str:
    if word in WORDS:
        return (
            f"{word} is a command of `ray-precheck inspect` ({WORDS[word]}):"
            f" ray-precheck inspect CAPTURE {word}"
        )
    near = get_close_matches(word, (*_NAMES, *WORDS), 1)
    where = " of `ray-precheck inspect`" if near and near[0] in WORDS else ""
    told = f"the nearest is {near[0]}{where}" if near else f"there are: {', '.join(_NAMES)}"
    return f"{shown(word)} is no command; {told} (see ray-precheck --help)"


def main(
    arguments: Sequence[str] | None = None,
    announce: Callable[[str], None] = lambda text: None,
    *,
    is_own: bool = False,
) -> int:
    """Run a command and return the exit code; `announce` is told the result CSV once it is there. `is_own`:
    this process is the command's alone."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in own
    invocation = Invocation(tuple(given), announce)
    before = INVOKED.set(invocation.given)
    try:
        with _ends_in_order(given, is_own), cuts_told(_say_first) as cuts:
            try:
                options = build_parser().parse_args(given)
            except UsageError:
                _require_command(given)  # which says more of a word that is no command
                raise
            execute: Execute = options.execute
            code = execute(options, invocation)
        if cuts and code == PASSED:
            code = NOTHING_CHECKED  # what was to be looked at was not there
        sys.stdout.flush()  # A full disk is an error that is still said in a sentence here.
        return code
    except PrecheckError as error:
        if debug:
            raise
        print(f"ray-precheck: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ray-precheck: interrupted", file=sys.stderr)
        _say_how_to_resume(given, invocation.told[-1] if invocation.told else "")
        return STOPPED
    except Exception as error:
        # Broad, because all errors for people are caught above: this one is a fault of this package
        # or of a library, and the run can still be resumed from its files.
        if debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(
            f"ray-precheck: internal error: {text} (--debug shows the traceback)", file=sys.stderr
        )
        return STOPPED
    finally:
        INVOKED.reset(before)


def _say_first(text: str) -> None:
    print(f"warning: {text}.", file=sys.stderr, flush=True)
