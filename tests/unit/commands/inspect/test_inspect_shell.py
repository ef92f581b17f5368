"""The shell through a pseudo-terminal, with prompt_toolkit and without it."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.commands.inspect.answers import Table, WordAnswer, as_text
from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.commands.inspect.shell import Shell
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit

_LIMIT_S = 60.0
# What a terminal obeys: sequences that set colours and move the cursor.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>78])")
_X = np.linspace(-1, 1, 6)
# Hides the packages of the extra.
_PLAIN = (
    "import importlib.util as u; find = u.find_spec;"
    "u.find_spec = lambda name, package=None: None if name in"
    " ('prompt_toolkit', 'rich', 'rapidfuzz') else find(name, package);"
)
_ROOT = str(Path(__file__).parents[4])
_INSPECT = "import sys; from ray_precheck.__main__ import main; sys.exit(main())"


def _as_a_terminal_does() -> None:
    """Make the standard input the terminal of this session, and hear Ctrl-C, which is ignored in whatever a
    shell starts in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Terminal:
    """A program at a terminal of so many columns."""

    def __init__(self, words: list[str], columns: int, folder: Path) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
        # Not this process's path: MindSpore puts a folder with a math.py on it.
        environment = {
            **os.environ, "XDG_STATE_HOME": str(folder), "TERM": "xterm", "PYTHONPATH": _ROOT, "PAGER": "cat",
            "PYTHON_HISTORY": os.devnull, "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
            start_new_session=True, preexec_fn=_as_a_terminal_does,
        )  # fmt: skip
        os.close(theirs)
        self.raw = ""

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._own, text.encode())

    def interrupt(self, text: str) -> None:
        """Press Ctrl-C until a text comes: one that is pressed between a prompt and the system call that
        reads the line is not heard by Python's `input`."""
        for _ in range(5):
            self.type("\x03")
            try:
                self.expect(text, _LIMIT_S / 5)
            except AssertionError:
                continue
            return
        raise AssertionError(f"Ctrl-C did not lead to {text!r}: {self.raw!r}")

    def expect(self, text: str, limit_s: float = _LIMIT_S) -> str:
        """Wait for a text behind what was waited for before, and return what stands up to it."""
        end = time.monotonic() + limit_s
        while text not in (shown := _SEQUENCE.sub("", self.raw)):
            if not select.select([self._own], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"{text!r} did not come: {shown!r}")
            try:
                piece = os.read(self._own, 1 << 16)
            except OSError:
                piece = b""
            if not piece:
                raise AssertionError(f"the program ended without {text!r}: {shown!r}")
            self._answer(piece)
            self.raw += piece.decode(errors="replace")
        before, _, self.raw = shown.partition(text)
        return before

    def _answer(self, piece: bytes) -> None:
        """Answer the question where the cursor is, as a terminal does."""
        if b"\x1b[6n" in piece:
            os.write(self._own, b"\x1b[1;1R")

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        end = time.monotonic() + _LIMIT_S
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self._own], [], [], 0.05)[0]:
                try:
                    self._answer(os.read(self._own, 1 << 16))
                except OSError:
                    break
        return self.process.wait(_LIMIT_S)

    def close(self) -> None:
        """End the program, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)


Starts = Callable[..., Terminal]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    calls = [
        (f"Mint.{name}.{at}.forward", [_X], [_X * 2]) for at, name in enumerate(("mul", "exp"))
    ]
    return write_capture(tmp_path / "capture", calls)


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    """Starts the shell over a capture; `plain` without the packages of the extra."""
    started = []

    def start(capture: Path, *, plain: bool = False, columns: int = 100) -> Terminal:
        code = f"{_PLAIN if plain else ''}{_INSPECT}"
        words = [sys.executable, "-c", code, "inspect", str(capture)]
        started.append(Terminal(words, columns, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize("plain", [False, True])
def test_typing_words_and_leaving_with_ctrl_d(starts: Starts, capture: Path, plain: bool) -> None:
    terminal = starts(capture, plain=plain)
    terminal.expect("inspect >")
    terminal.type("ls -t exp\r")
    terminal.expect("[Mint.exp] Mint.exp.1.forward")
    terminal.expect("inspect >")
    terminal.type("ni Mint.xep.1\r")
    terminal.expect("nearest: Mint.exp.1")
    terminal.expect("inspect >")
    terminal.type("pt 'unclosed\r")
    terminal.expect("error: pt 'unclosed: No closing quotation")
    terminal.expect("inspect >")
    terminal.type("! echo sum-$((20 + 3))\r")
    terminal.expect("sum-23")
    terminal.expect("inspect >")
    terminal.type("run exit 3\r")
    terminal.expect("exit code 3")
    terminal.expect("inspect >")
    terminal.type("\x04")
    assert terminal.end() == 0


@pytest.mark.parametrize("plain", [False, True])
def test_ctrl_c_clears_the_line_and_stops_a_word(
    starts: Starts, capture: Path, plain: bool
) -> None:
    terminal = starts(capture, plain=plain)
    terminal.expect("inspect >")
    terminal.type("nonsense")
    terminal.expect("nonsense")
    terminal.interrupt("inspect >")
    terminal.type("run echo begin-$((1 + 1)); sleep 100\r")
    terminal.expect("begin-2")
    terminal.interrupt("interrupted")
    terminal.expect("inspect >")
    terminal.type("ls -t mul\r")
    terminal.expect("Mint.mul.0.forward")
    terminal.expect("inspect >")
    terminal.type("exit\r")
    assert terminal.end() == 0


def test_tab_completes_words_options_and_names(starts: Starts, capture: Path) -> None:
    terminal = starts(capture)
    terminal.expect("inspect >")
    # The letters that are completed may be drawn behind those that were typed, or with them.
    terminal.type("wher\t")
    terminal.expect("wher")
    terminal.expect("e")
    terminal.type(" Mint.ex\t")
    terminal.expect("ex")
    terminal.expect("p")
    terminal.type(".1\r")
    terminal.expect("source:")
    terminal.expect("inspect >")
    terminal.type("\x1b[A\r")  # the line before, from the history
    terminal.expect("source:")
    terminal.expect("inspect >")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_completions_of_a_line(capture: Path, tmp_path: Path) -> None:
    session = InspectSession(capture, None, tmp_path / "state")
    shell = Shell(session)
    assert shell.completions("vc") == ["vc", "vcs"]
    assert {"-n", "--type", "--json"} <= set(shell.completions("ls -"))
    assert shell.completions("ls -t mul") == ["Mint.mul"]
    assert shell.completions("ni exp")[0] == "Mint.exp"
    assert shell.completions("ni Mint.exp")[0] == "Mint.exp.1"
    assert shell.completions("help wh") == ["where", "why"]
    assert shell.completions("run x") == []
    session.close()
    assert Shell(InspectSession(tmp_path / "nothing")).completions("ni x") == []


@pytest.mark.parametrize("plain", [False, True])
def test_forty_columns_hold_a_table(starts: Starts, capture: Path, plain: bool) -> None:
    terminal = starts(capture, plain=plain, columns=40)
    terminal.expect("inspect >")
    terminal.type("up Mint.exp.1\r")
    terminal.expect("Value")
    told = terminal.expect("inspect >")
    assert "input.0" in told
    assert max(map(len, told.splitlines())) <= 40


@pytest.mark.parametrize("plain", [False, True])
def test_names_do_not_steer_the_terminal(starts: Starts, tmp_path: Path, plain: bool) -> None:
    path = write_capture(tmp_path / "evil", [("Mint.exp.0.forward", [_X], [_X])])
    dump = json.loads(path.read_text())
    evil = "Mint.\x1b]0;owned\x07\x1b[31m\u202ered"
    dump["data"] = {f"{evil}.0.forward": {"input_args": [], "output": []}}
    path.write_text(json.dumps(dump))
    terminal = starts(path, plain=plain)
    terminal.expect("inspect >")
    seen = ""
    for line in ("ls", "ls -n red", "ni red", "ni Mint.\t"):
        terminal.type(f"{line}\r")
        time.sleep(0.2)
    terminal.type("run echo last-$((1 + 1))\r")
    end = time.monotonic() + _LIMIT_S
    while "last-2" not in seen and time.monotonic() < end:
        if select.select([terminal._own], [], [], 1.0)[0]:
            piece = os.read(terminal._own, 1 << 16)
            terminal._answer(piece)
            seen += piece.decode(errors="replace")
    assert "last-2" in seen
    assert "owned" in seen
    for sequence in ("\x1b]0;owned", "\x1b[31m\u202e", "\u202e", "\x07\x1b"):
        assert sequence not in seen


def test_lines_of_a_pipe_are_answered_without_a_prompt(capture: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck", "inspect", str(capture)],
        input="ls -t exp\nnonsense\n# a remark\n\nls --json\n", capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, timeout=_LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0
    first, second, *rest = done.stdout.splitlines()
    assert first == "[Mint.exp] Mint.exp.1.forward"
    assert second.startswith("error: 'nonsense' is no word of inspect")
    assert json.loads("\n".join(rest)) == {"Mint.mul": 1, "Mint.exp": 1}
    assert "\x1b" not in done.stdout


def test_tables_fit_any_width() -> None:
    table = Table(("Name", "N"), [("a" * 90, "1"), ("b c " * 30, "22")], "title", frozenset((1,)))
    for width in (40, 60, 120):
        lines = as_text(WordAnswer(None, (table,)), width).splitlines()
        assert max(map(len, lines)) <= width
        assert "".join(line[: width - 4].strip() for line in lines[3:]).count("a") == 90


def test_the_terminal_is_left_as_it_was(starts: Starts, capture: Path) -> None:
    terminal = starts(capture)
    terminal.expect("inspect >")
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end() in (-signal.SIGTERM, 0, 3)
