"""The process of another interpreter: requests, errors, crashes, hangs, and its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ray_precheck.commands.bisect.trial_process import (
    TrialProcess,
    interpreter,
    signal_name,
)
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit
INSIDE = """
import os, signal, sys, time

class Opened:
    def __init__(self, settings):
        self.settings, self.count = settings, 0

    def answer(self, request):
        self.count += 1
        word = request["do"]
        print("said", word)
        if word == "raise":
            raise ValueError("first\\nsecond")
        if word == "leave":
            sys.exit(3)
        if word == "die":
            os._exit(5)
        if word == "fork and crash" and os.fork() == 0:
            time.sleep(600)
        if "crash" in word:
            os.kill(os.getpid(), signal.SIGSEGV)
        if word == "hang":
            time.sleep(600)
        return {"count": self.count, "pid": os.getpid(), "path": sys.path, **self.settings}

def open_target(settings):
    if settings.get("broken"):
        raise ImportError("no framework here")
    return Opened(settings)
"""
Make = Callable[..., TrialProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    (tmp_path / "inside.py").write_text(INSIDE)
    made: list[TrialProcess] = []

    def start(python: str = sys.executable, **settings: object) -> TrialProcess:
        made.append(TrialProcess(python, tmp_path / "inside.py", settings, tmp_path, {"MORE": "1"}))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_it_stays_warm_from_request_to_request(make: Make) -> None:
    process = make(setting=[1, "two"])
    first, second = (process.ask({"do": "count"}, 60) for _ in range(2))
    assert first.answer is not None
    assert second.answer is not None
    assert (first.answer["count"], second.answer["count"]) == (1, 2)
    assert first.answer["pid"] == second.answer["pid"]
    assert first.answer["setting"] == [1, "two"]
    assert (first.log, first.reason) == ("said count\n", "")
    assert not any(path.endswith("bisect/inside") for path in first.answer["path"])


def test_what_is_raised_is_its_first_line_and_the_process_stays(make: Make) -> None:
    process = make()
    reply = process.ask({"do": "raise"}, 60)
    assert (reply.answer, reply.error, reply.end) == (None, "ValueError: first", "")
    assert process.ask({"do": "leave"}, 60).error == "SystemExit: 3"
    reply = process.ask({"do": "count"}, 60)
    assert reply.answer is not None
    assert reply.answer["count"] == 3


@pytest.mark.parametrize(
    ("word", "end"), [("die", "exit 5"), ("crash", "SIGSEGV"), ("hang", "timeout")]
)
def test_a_process_that_ended_is_started_again(make: Make, word: str, end: str) -> None:
    process = make()
    process.ask({"do": "count"}, 60)
    reply = process.ask({"do": word}, 1.0)
    assert (reply.answer, reply.end, reply.reason) == (None, end, end)
    again = process.ask({"do": "count"}, 60)
    assert again.answer is not None
    assert again.answer["count"] == 1


def test_a_target_that_cannot_be_opened_says_why_each_time(make: Make) -> None:
    process = make(broken=True)
    assert [process.ask({"do": "count"}, 60).error for _ in range(2)] == [
        "ImportError: no framework here"
    ] * 2


def test_an_interpreter_that_is_not_there_is_one_sentence(make: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--python nowhere: cannot start it"):
        make("nowhere").ask({"do": "count"}, 60)
    with pytest.raises(UsageError, match="there is no such program"):
        interpreter(str(tmp_path))
    assert interpreter("") == sys.executable


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "inside.py").write_text(INSIDE)
    code = (
        "import sys; from pathlib import Path;"
        "from ray_precheck.commands.bisect.trial_process import TrialProcess;"
        f"here = Path({str(tmp_path)!r});"
        "process = TrialProcess(sys.executable, here / 'inside.py', {}, here);"
        "print(process.ask({'do': 'count'}, 60).answer['pid'], flush=True);"
        "process.ask({'do': 'hang'}, 600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it is still there")


def test_signals_have_names() -> None:
    assert signal_name(-signal.SIGSEGV) == "SIGSEGV"
    assert signal_name(-63) == "signal 63"


def test_a_crash_is_seen_at_once_where_a_fork_of_the_process_lives_on(make: Make) -> None:
    process = make()
    began = time.monotonic()
    reply = process.ask({"do": "fork and crash"}, 60)
    assert reply.end == "SIGSEGV"
    assert time.monotonic() - began < 60
    assert process.ask({"do": "count"}, 60).answer is not None
