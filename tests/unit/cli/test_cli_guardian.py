"""The guardian: what becomes of a command that ends by itself, and of one that is ended."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a parent of its orphans"),
]
PROGRAM = """
import os, signal, subprocess, sys, time
from ray_precheck.cli.guardian import guard

def command(announce):
    announce("first.csv")
    announce("the last.csv")
    {body}
    return 0

{before}
print("over", guard(command, lambda said, how: print("epitaph", said, how, sep="|")), flush=True)
"""


def run(body: str, before: str = "") -> "subprocess.Popen[str]":
    source = PROGRAM.format(body=body, before=before)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("return 0", 0),
        ("return 3", 3),
        ("sys.exit(2)", 2),
        ("sys.exit('no')", 1),
        ("sys.exit()", 0),
    ],
)
def test_an_exit_code_of_its_own_is_passed_on(body: str, code: int) -> None:
    assert run(body).communicate(timeout=60)[0] == f"over {code}\n"


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os._exit(1)", "exit code 1, no message: Ray ends a process so when its raylet dies"),
    ],
)
def test_a_command_that_is_ended_is_told_with_the_last_thing_it_said(body: str, how: str) -> None:
    output = run(body).communicate(timeout=60)[0]
    assert output == f"epitaph|the last.csv|{how}\nover 3\n"


def test_what_it_said_counts_though_a_library_crashes_while_python_ends() -> None:
    body = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGSEGV); return 2"
    assert run(body).communicate(timeout=60)[0] == "over 2\n"


def test_an_interrupt_while_it_ends_is_none() -> None:
    output = run("raise KeyboardInterrupt").communicate(timeout=60)[0]
    assert output.endswith("over 3\n")
    assert output.startswith("epitaph|the last.csv|")


def test_an_exception_is_an_end_of_its_own() -> None:
    assert run("raise ValueError").communicate(timeout=60)[0] == "over 1\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_to_the_command(number: signal.Signals) -> None:
    body = (
        f"signal.signal({int(number)}, lambda *_: sys.exit(7)); print('ready', flush=True);"
        "[time.sleep(0.1) for _ in range(600)]"  # a signal just before a long one is heard after it
    )
    process = run(body)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "over 7\n"


def test_ctrl_c_on_a_terminal_which_the_command_hears_itself_is_not_passed_on() -> None:
    body = (
        "heard = []; signal.signal(signal.SIGINT, lambda *_: heard.append(1));"
        "print('ready', flush=True); [time.sleep(0.1) for _ in range(20)];"
        "print('heard', len(heard), flush=True)"
    )
    master, terminal = os.openpty()
    source = PROGRAM.format(body=body, before="")
    # A session of its own, whose terminal this is.
    shell = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    start = f"{shell} os.execv(sys.executable, [sys.executable, '-c', {source!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", start], stdin=terminal, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.write(master, b"\x03")
    assert process.communicate(timeout=60)[0] == "heard 1\nover 0\n"
    os.close(master)
    os.close(terminal)


# The guardian may not run for a second after it has started the command.
@pytest.mark.parametrize("delay_s", [0, 1])
def test_what_the_command_leaves_behind_is_ended(tmp_path: Path, delay_s: int) -> None:
    pid_file = tmp_path / "pid"
    sleeper = "subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid"
    body = f"open({str(pid_file)!r}, 'w').write(str({sleeper})); os._exit(9)"
    late = f"def late():\n    child = fork()\n    child and time.sleep({delay_s})\n    return child"
    output = run(body, f"fork = os.fork\n{late}\nos.fork = late").communicate(timeout=60)[0]
    assert output.endswith("over 3\n")
    left = int(pid_file.read_text())
    try:
        assert not psutil.pid_exists(left)
    finally:
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def test_the_command_ends_with_a_guardian_that_is_killed() -> None:
    process = run("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)
