"""Trials of commands: their verdicts, and that nothing of them stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_precheck.commands.bisect.target import TrialResult
from ray_precheck.commands.bisect.targets.command import own_error
from ray_precheck.commands.bisect.targets.command.own_error import judge_own_error
from ray_precheck.commands.bisect.targets.command.switches import parse_switches
from ray_precheck.commands.bisect.targets.command.target import CommandConfig, CommandOpener
from ray_precheck.commands.bisect.trial_command import CommandEnd, run_command
from ray_precheck.searching.bisection import Rung, Trial, TrialAnswer

pytestmark = pytest.mark.unit
PASS, FAIL, UNRESOLVED = TrialAnswer.PASS, TrialAnswer.FAIL, TrialAnswer.UNRESOLVED


def tried(
    folder: Path,
    *command: str,
    switch: tuple[str, ...] = ("env:A=1|0",),
    on: int = 1,
    **options: object,
) -> TrialResult:
    """Return what a trial says in which the first switches are on."""
    config = CommandConfig(switch=switch, command=command, **options)  # type: ignore[arg-type]
    switches, wiring = parse_switches(switch, command, os.environ)
    opener = CommandOpener(config, wiring, None, dict(os.environ), str(folder))
    rung = Rung("switches", switches)
    scratch = folder / f"scratch{len(list(folder.glob('scratch*')))}"
    scratch.mkdir()
    runner = opener.open(scratch)
    found = runner.run(Trial("switches", frozenset(rung.members[:on])), rung)
    assert list(scratch.iterdir()) == []
    return found


def shell(folder: Path, script: str, **options: object) -> TrialResult:
    return tried(folder, "sh", "-c", script, **options)  # type: ignore[arg-type]


def alive(title: str) -> list[str]:
    """Return the processes whose command line has this text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if title in line:
            found.append(line)
    return found


def test_the_exit_code_judges(tmp_path: Path) -> None:
    assert shell(tmp_path, "exit 0") == TrialResult(PASS, "0")
    assert shell(tmp_path, "echo first; echo why; exit 3") == TrialResult(
        FAIL, "3", message="it ended with 3: why"
    )
    for code, why in ((125, "cannot tell"), (126, "cannot be executed"), (127, "is not there")):
        found = shell(tmp_path, f"exit {code}")
        assert (found.answer, found.exit) == (UNRESOLVED, str(code))
        assert why in found.message
    found = shell(tmp_path, "kill -SEGV $$")
    assert (found.answer, found.exit) == (UNRESOLVED, "SIGSEGV")
    assert "cannot be started" in tried(tmp_path, "nowhere").message


def test_this_packages_own_commands_say_by_2_3_and_4_that_they_cannot_tell(tmp_path: Path) -> None:
    own = tmp_path / "ray-precheck"
    own.write_text("#!/bin/sh\nexit $1\n")
    own.chmod(0o700)
    answers = [tried(tmp_path, str(own), str(code)).answer for code in range(5)]
    assert answers == [PASS, FAIL, UNRESOLVED, UNRESOLVED, UNRESOLVED]
    found = tried(tmp_path, sys.executable, "-m", "ray_precheck", "locate", "-tp", "nowhere")
    assert (found.answer, found.exit) == (UNRESOLVED, "2")


def test_with_fail_on_raise_a_crash_and_a_hang_are_what_is_looked_for(tmp_path: Path) -> None:
    raising = {"fail_on": "raise"}
    assert shell(tmp_path, "exit 0", **raising).answer is PASS
    assert shell(tmp_path, "exit 1", **raising).answer is FAIL
    assert shell(tmp_path, "kill -ABRT $$", **raising).answer is FAIL
    assert shell(tmp_path, "sleep 60", timeout_s=0.5, **raising) == TrialResult(
        FAIL, "timeout", message="timeout"
    )
    assert shell(tmp_path, "exit 127", **raising).answer is UNRESOLVED
    assert tried(tmp_path, "nowhere", **raising).answer is UNRESOLVED  # type: ignore[arg-type]


def test_a_check_judges_what_a_command_has_left(tmp_path: Path) -> None:
    def checked(script: str, check: str) -> TrialResult:
        return shell(tmp_path, script, check=("sh", "-c", check))

    left = "echo $A > $BISECT_TRIAL/left"
    assert checked(left, "grep -q 1 $BISECT_TRIAL/left").answer is PASS
    found = checked(left, "cat $BISECT_TRIAL/left; exit 2")
    assert found == TrialResult(FAIL, "2", message="the check: it ended with 2: 1")
    assert checked(left, "exit 125").answer is UNRESOLVED
    assert checked(left, "kill -9 $$").answer is UNRESOLVED
    found = checked("echo no; exit 1", "exit 1")
    assert found == TrialResult(UNRESOLVED, "1", message="COMMAND: it ended with 1: no")


def test_the_environment_and_the_folder_are_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN", "is there")
    script = f'[ "$OWN" = "is there" ] && [ "$PWD" = "{tmp_path}" ] && [ -d "$BISECT_TRIAL" ]'
    assert shell(tmp_path, script).answer is PASS


def test_an_attribute_is_set_when_its_module_is_imported(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("FAST = True\n")
    (tmp_path / "mine" / "deep.py").write_text("LEVEL = 3\nclass Flags:\n    on = True\n")
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['HIDDEN'] = 'run'\n")
    code = (
        "import os, inspect, mine, mine.deep\n"
        "assert os.environ['HIDDEN'] == 'run'\n"
        "assert mine.__spec__.loader.__class__.__name__ == 'SourceFileLoader'\n"
        "raise SystemExit(10 * mine.FAST + mine.deep.LEVEL + 100 * mine.deep.Flags.on)"
    )
    words = ("py:mine.FAST=|False", "py:mine.deep.LEVEL=|0", "py:mine.deep.Flags.on=|False")
    command = (sys.executable, "-c", code)
    path = str(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", path)
        found = [tried(tmp_path, *command, switch=words, on=on) for on in range(4)]
    assert [each.exit for each in found] == ["0", "10", "13", "113"]


@pytest.mark.parametrize(
    ("word", "code", "why"),
    [
        ("py:json.dumsp=|None", "import json", "json.dumsp cannot be set: .*; the nearest is dump"),
        ("py:jsno.dumps=|None", "import json", "no Python of COMMAND has a module jsno"),
    ],
)
def test_an_attribute_that_is_not_there_is_told(
    tmp_path: Path, word: str, code: str, why: str
) -> None:
    found = tried(tmp_path, sys.executable, "-c", code, switch=(word,), on=0)
    assert found.answer is UNRESOLVED
    assert __import__("re").search(why, found.message)
    unused = tried(tmp_path, sys.executable, "-c", "", switch=("py:json.dumps=|None",), on=0)
    assert unused.answer is PASS
    no_python = tried(tmp_path, "true", switch=("py:json.dumps=|None",), on=0)
    assert "reach no Python of COMMAND" in no_python.message


def test_a_command_that_was_killed_from_outside_is_run_once_more(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    once = f'echo x >> {ran}; [ "$(wc -l < {ran})" = 1 ] && kill -9 $$; exit 0'
    assert shell(tmp_path, once).answer is PASS
    found = shell(tmp_path, f"echo x >> {ran}; kill -9 $$")
    assert (found.answer, found.exit) == (UNRESOLVED, "SIGKILL")
    assert ran.read_text().count("x") == 4


HIDING = "setsid sh -c 'setsid sleep {0} & sleep {0}' & "


def run(script: str, folder: Path, timeout_s: float = 60.0) -> CommandEnd:
    return run_command(["sh", "-c", script], os.environ, folder, timeout_s, folder / "output")


def test_nothing_that_a_command_has_started_outlives_it(tmp_path: Path) -> None:
    assert run(HIDING.format("701.25") + "sleep 0.3; exit 5", tmp_path).code == 5
    assert alive("sleep 701.25") == []


def test_nothing_outlives_the_limit_of_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    end = run(HIDING.format("702.25") + "trap '' TERM INT; sleep 702.25", tmp_path, 0.5)
    assert (end.code, end.exit) == (None, "timeout")
    assert time.monotonic() - begin < 5
    assert alive("sleep 702.25") == []


def test_nothing_outlives_a_keeper_that_is_killed(tmp_path: Path) -> None:
    end = run(HIDING.format("703.25") + "sleep 0.3; kill -9 $PPID; sleep 703.25", tmp_path)
    assert end.is_killed
    assert alive("sleep 703.25") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_process_that_runs_trials(tmp_path: Path, number: int) -> None:
    code = (
        "import os; from pathlib import Path;"
        "from ray_precheck.commands.bisect.trial_command import run_command;"
        f"run_command(['sh', '-c', {HIDING.format('704.25') + 'sleep 704.25'!r}], os.environ,"
        f" Path({str(tmp_path)!r}), 60, Path({str(tmp_path / 'output')!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 30
    # The shells, their sleeps, and what runs them.
    while len(alive("sleep 704.25")) < 5 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(alive("sleep 704.25")) >= 5
    process.send_signal(number)
    process.wait(10)
    until = time.monotonic() + 10
    while alive("sleep 704.25") and time.monotonic() < until:
        time.sleep(0.05)
    assert alive("sleep 704.25") == []


HEAD = "Record,Value,Verdict,Own Error,Message\n"


@pytest.mark.parametrize(
    ("name", "tolerance", "answer", "metric"),
    [
        ("Torch.sin.1.forward", None, FAIL, 40.0),
        ("Torch.sin.1", 50.0, PASS, 40.0),
        ("Torch.sin", 0.1, FAIL, 40.0),
        ("Torch.sin.0", None, PASS, 0.2),
        ("Torch.cos", None, UNRESOLVED, None),
        ("Torch.tan", None, UNRESOLVED, None),
    ],
)
def test_an_own_error_is_the_metric(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    tolerance: float | None,
    answer: TrialAnswer,
    metric: float | None,
) -> None:
    def locate(
        words: list[str], env: object, folder: Path, limit_s: float, output: Path
    ) -> CommandEnd:
        out = Path(words[words.index("-o") + 1])
        out.mkdir()
        rows = "Torch.sin.0.forward,,pass,0.2,\nTorch.sin.1.forward,,error,40,\n"
        more = "Torch.sin.1.forward,output.0,,,\nTorch.cos.0.forward,,SKIP,,it is random\n"
        (out / "locate_values_1.csv").write_text(HEAD + rows + more)
        return CommandEnd(1)

    monkeypatch.setattr(own_error, "run_command", locate)
    assert "has left no capture" in judge_own_error(tmp_path, name, tolerance, 9.0).message
    (tmp_path / "capture").mkdir()
    found = judge_own_error(tmp_path, name, tolerance, 9.0)
    assert (found.answer, found.metric) == (answer, metric)
    if name == "Torch.tan":
        assert "locate measured no Torch.tan; the nearest is Torch." in found.message
