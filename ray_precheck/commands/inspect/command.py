"""The command inspect: one word about a capture, or a shell with all of them.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.inspect.options import WORDS
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import DEBUG, PASSED, Command, Invocation
from ray_precheck.options.declared import Option, Takes

if TYPE_CHECKING:
    from ray_precheck.commands.inspect.session import InspectSession

_WITH, _JSON = "--with", "--json"


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """WordAnswer a word, or open the shell; return the exit code."""
    from ray_precheck.commands.inspect.session import InspectSession
    from ray_precheck.commands.inspect.shell import Shell

    golden, is_json, words = _split_words(options)
    session = InspectSession(Path(options.capture), golden)
    try:
        session.capture  # noqa: B018  # What cannot be read is said before anything is asked.
        session.golden  # noqa: B018
        if not words:
            return Shell(session).run()
        return _answer(session, words, is_json=is_json)
    finally:
        session.close()


def _answer(session: "InspectSession", words: Sequence[str], *, is_json: bool) -> int:
    from ray_precheck.commands.inspect.answers import as_json, as_text
    from ray_precheck.commands.inspect.words import answer_of

    answer, wants_json = answer_of(session, words)
    if is_json or wants_json:
        print(as_json(answer))
    elif answer.parts:
        # Without a terminal a line is as long as it is: a program may read it.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16
        print(as_text(answer, width))
    return PASSED


def _split_words(options: argparse.Namespace) -> tuple[Path | None, bool, list[str]]:
    """Return the other capture, whether JSON is wanted, and the words; the options of the command may stand
    behind the capture, where argparse takes them for words.

    Raises:
        UsageError: an option is unknown, or lacks its value.
    """
    golden, is_json, words = getattr(options, "with"), options.json, list(options.words)
    while words and words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        if option == _JSON:
            is_json = True
        elif option == "--debug":
            pass  # which `main` has seen
        elif option == _WITH:
            if not value and not words:
                raise UsageError(f"{_WITH} wants the path of a capture")
            golden = value or words.pop(0)
        else:
            raise UsageError(
                f"unknown option {option} of inspect (see ray-precheck inspect --help)"
            )
    return Path(golden) if golden else None, is_json, words


_TEXT = "look into a capture: one word about it, or a shell"
COMMANDS = (
    Command(
        names={"inspect": _TEXT},
        options=(
            Option(
                ("capture",),
                "a dump.json, a folder with one, or a capture of another tool",
                metavar="CAPTURE",
            ),
            Option(
                (_WITH,),
                "another capture, which diff, why, vc and ac -c compare with",
                metavar="CAPTURE2",
            ),
            Option(
                (_JSON,), "print the answer of a word as JSON", takes=Takes.NOTHING, default=False
            ),
            Option(
                ("words",),
                f"a word and its options: {', '.join(WORDS)}; without one a shell is opened",
                takes=Takes.REST,
                metavar="WORD",
            ),
            DEBUG,
        ),
        execute=_execute,
        epilog="exit codes: 0 answered, 2 wrong usage or unreadable input",
        description=f"{_TEXT}; `ray-precheck inspect CAPTURE help` lists the words",
    ),
)
