"""The shell: a prompt that answers words until the user leaves.

Comes in: an `InspectSession`. Goes out: an exit code. Called by the command and by `tools.precision_tool`.
With prompt_toolkit the prompt completes words, options and names, and keeps its history in the user's state
folder; without it lines are read as Python reads them. Ctrl-C stops what a word does, or clears the line;
Ctrl-D leaves. Standard output of this program escapes what a terminal obeys, so the shell writes to the
terminal itself what it has drawn; names of the capture are escaped before (`answers`).
"""

import os
import pydoc
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ray_precheck.commands.inspect.answers import as_json, as_text
from ray_precheck.commands.inspect.opened import likest_names
from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.commands.inspect.words import (
    TABLE,
    answer_of,
    options_of_word,
    run_shell,
    unknown_word,
)
from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.foreign import caught, first_line, printable
from ray_precheck.options.commands import PASSED

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

PROMPT = "inspect > "
_LEAVING = ("exit", "quit", "q")
_MOST_COMPLETED = 20
# So many numbers of one call are offered.
_MOST_NUMBERS = 50
_HISTORY = "history"
_LEAST_WIDTH = 20


@dataclass
class Shell:
    """A prompt. `on_unknown` is told a line whose first word is none, and may run it; `leaves_on_interrupt`:
    Ctrl-C at the prompt leaves, as precision_tool's does."""

    session: InspectSession
    prompt: str = PROMPT
    on_unknown: Callable[[str], None] | None = None
    leaves_on_interrupt: bool = False
    greeting: str = ""

    def run(self) -> int:
        """Read and answer lines until the user leaves; return the exit code."""
        if self.greeting:
            self._write(self.greeting)
        while True:
            try:
                line = self._read()
            except KeyboardInterrupt:
                if self.leaves_on_interrupt:
                    break
                continue
            except EOFError:
                break
            if line.strip() in _LEAVING:
                break
            try:
                self._run_line(line.strip())
            except KeyboardInterrupt:
                self._write("interrupted")
        return PASSED

    def _run_line(self, line: str) -> None:
        """WordAnswer a line, and say what went wrong; the shell goes on whatever it is."""
        try:
            # Whatever a word runs into, a fault of this package or of a library, the shell goes on.
            _, error = caught(lambda: self.answer(line), PrecheckError)
        except PrecheckError as sentence:
            self._write(f"error: {' '.join(str(sentence).split())}")
            return
        except SystemExit:  # of a console
            return
        if error is not None:
            self._write(f"internal error: {type(error).__name__}: {first_line(error)}")

    def answer(self, line: str) -> None:
        """WordAnswer a line.

        Raises:
            PrecheckError: the sentence about what went wrong.
        """
        if not line or line.startswith("#"):
            return
        if line.startswith("!"):
            self._show(run_shell(line[1:]), is_json=False)
            return
        name, _, rest = line.partition(" ")
        if name == "run":  # with the quotes of the shell
            self._show(run_shell(rest), is_json=False)
            return
        if name not in TABLE:
            if self.on_unknown is None:
                raise UsageError(unknown_word(name))
            self.on_unknown(line)
            return
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"{line}: {error}") from None
        answer, is_json = answer_of(self.session, words)
        self._show(answer, is_json=is_json)

    def _show(self, answer: Any, *, is_json: bool) -> None:
        if is_json:
            self._write(as_json(answer))
            return
        if not answer.parts:
            return
        columns, height = shutil.get_terminal_size()
        width = max(_LEAST_WIDTH, columns) if self._is_terminal else 1 << 16
        colours = self._is_terminal and "NO_COLOR" not in os.environ
        text = as_text(answer, width, colours=colours)
        if self._is_terminal and text.count("\n") >= height - 1:
            # A pager shows no colours everywhere.
            pydoc.pager(as_text(answer, width))
        else:
            self._write(text, is_drawn=colours)

    @cached_property
    def _is_terminal(self) -> bool:
        return sys.stdin.isatty() and sys.stdout.isatty()

    def _write(self, text: str, *, is_drawn: bool = False) -> None:
        """Write a text; what was drawn goes round the stream that escapes what a terminal obeys."""
        if not is_drawn:
            print("\n".join(map(printable, text.split("\n"))), flush=True)
            return
        sys.stdout.flush()
        with open(
            sys.stdout.fileno(), "w", encoding="utf-8", errors="replace", closefd=False
        ) as screen:
            screen.write(f"{text}\n")

    def _read(self) -> str:
        if self._prompting is not None:
            return str(self._prompting.prompt(self.prompt))
        if self._is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  # By which `input` edits its line.
        return input(self.prompt if self._is_terminal else "")

    @cached_property
    def _prompting(self) -> "PromptSession[str] | None":
        """prompt_toolkit's prompt; None where it is not installed, or nobody sits at a terminal."""
        if not self._is_terminal or find_spec("prompt_toolkit") is None:
            return None
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        try:
            self.session.state.mkdir(parents=True, exist_ok=True)
            path = self.session.state / _HISTORY
            path.touch()
            history: Any = FileHistory(str(path))
        except OSError:
            history = InMemoryHistory()
        return PromptSession(
            history=history, completer=self._completer(), complete_while_typing=False
        )

    def _completer(self) -> "Completer":
        from prompt_toolkit.completion import Completer, Completion

        shell = self

        class _Names(Completer):  # type: ignore[misc]
            def get_completions(self, document: Any, event: Any) -> Iterator[Any]:
                before = document.text_before_cursor
                typed = before.rpartition(" ")[2]
                for text in shell.completions(before):
                    yield Completion(text, start_position=-len(typed), display=printable(text))

        return _Names()

    def completions(self, before: str) -> Sequence[str]:
        """Return what may stand in the place of the last word of a line."""
        *words, typed = before.lstrip().split(" ")
        if not words:
            return [name for name in (*TABLE, "exit") if name.startswith(typed)]
        if typed.startswith("-"):
            return [each for each in options_of_word(words[0]) if each.startswith(typed)]
        if words[0] in ("help", "run", "python"):
            return [name for name in TABLE if name.startswith(typed)] if words[0] == "help" else []
        found, error = caught(lambda: self._names(words, typed))
        return found if found is not None and error is None else []

    def _names(self, words: Sequence[str], typed: str) -> list[str]:
        """Return names of operators, and of calls once a whole name of an API was typed."""
        index = self.session.capture.index
        if words[-1] in ("-t", "--type"):
            types = sorted({pattern.type_name for pattern in index.all_patterns})
            return [_quoted(each) for each in _fitting_names(typed, types)]
        names = _fitting_names(typed, self.session.capture.names)
        exact = typed.rstrip(".")
        if exact in self.session.capture.names and words[0] != "ls":
            names = [*_numbered(self.session, exact), *names]
        return [_quoted(each) for each in names]


def _fitting_names(typed: str, names: Sequence[str]) -> list[str]:
    """Return the names that hold what was typed; where none does, those that are like it."""
    holding = [each for each in names if typed.lower() in each.lower()]
    return likest_names(typed, holding or names, _MOST_COMPLETED)


def _numbered(session: InspectSession, name: str) -> list[str]:
    index = session.capture.index
    places = [
        place
        for place, pattern in enumerate(index.all_patterns)
        if pattern.name == name and pattern.tail in (".forward", "")
    ]
    found: list[str] = []
    for place in places:
        rows = (index.patterns == place).nonzero()[0][:_MOST_NUMBERS].tolist()
        found += [index.key(row).removesuffix(".forward") for row in rows]
    return found


def _quoted(name: str) -> str:
    return shlex.quote(name)
