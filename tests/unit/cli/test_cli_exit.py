"""Exit codes, what is printed where, and what is not imported."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ray_precheck.commands.precheck.run
from ray_precheck.cli import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED, UNUSABLE, main
from ray_precheck.commands.precheck.run import PrecheckReport
from ray_precheck.commands.precheck.summary import Direction, Summary
from ray_precheck.errors import DumpError, StoppedError, UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.store.tables import RESULT_COLUMNS, RunFiles, header, run_files

pytestmark = pytest.mark.unit

LINE = ["run_ut", "-api_info", "my dump.json"]
FILES = run_files(Path("out/accuracy_checking_result_1.csv"))


def session_gives(
    monkeypatch: pytest.MonkeyPatch, outcome: PrecheckReport | BaseException
) -> list[RunConfig]:
    """Let the session return or raise without running; returns what it is asked for."""
    asked: list[RunConfig] = []

    def run(config: RunConfig, *, on_files: Callable[[RunFiles], None]) -> PrecheckReport:
        asked.append(config)
        if isinstance(outcome, BaseException):
            raise outcome
        on_files(outcome.files)
        return outcome

    monkeypatch.setattr(ray_precheck.commands.precheck.run, "run", run)
    return asked


def report(*, errors: int = 0, completed: bool = True, stop_reason: str = "") -> PrecheckReport:
    """A report of three calls."""
    forward = Direction(passes=3 - errors, errors=errors)
    summary = Summary(FILES, total=3, passes=3 - errors, errors=errors, forward=forward)
    return PrecheckReport(summary, completed, stop_reason)


def test_the_exit_codes_are_those_of_the_manual() -> None:
    assert (PASSED, IN_ERROR, UNUSABLE, STOPPED, NOTHING_CHECKED) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("skips", "passes", "errors", "code"),
    [
        (3, 0, 0, NOTHING_CHECKED),
        (0, 0, 0, NOTHING_CHECKED),
        (2, 1, 0, PASSED),
        (2, 0, 1, IN_ERROR),
    ],
)
def test_what_was_checked_decides_if_anything_was(
    monkeypatch: pytest.MonkeyPatch, skips: int, passes: int, errors: int, code: int
) -> None:
    forward = Direction(passes=passes, errors=errors, skips=skips)
    total = skips + passes + errors
    summary = Summary(
        FILES, total=total, passes=passes, errors=errors, skips=skips, forward=forward
    )
    session_gives(monkeypatch, PrecheckReport(summary, True))
    assert main(LINE) == code


def test_a_stopped_run_that_has_checked_nothing_yet_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session_gives(monkeypatch, PrecheckReport(Summary(FILES), False))
    assert main(LINE) == STOPPED


def test_a_file_for_ci_that_cannot_be_written_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = session_gives(monkeypatch, report())
    for option in ("--junit", "--json"):
        assert main([*LINE, option, str(tmp_path)]) == UNUSABLE
        assert f"{option}: {tmp_path} is a folder" in capsys.readouterr().err
        assert main([*LINE, option, str(tmp_path / "none" / "x")]) == UNUSABLE
        assert f"the folder {tmp_path / 'none'} of x is not there" in capsys.readouterr().err
    same = str(tmp_path / "x")
    assert main([*LINE, "--junit", same, "--json", same]) == UNUSABLE
    assert "name two files" in capsys.readouterr().err
    assert asked == []


def test_the_files_for_ci_are_written_when_the_run_stops_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session_gives(monkeypatch, report(completed=False, stop_reason="disk full"))
    monkeypatch.chdir(tmp_path)
    FILES.result.parent.mkdir()
    FILES.result.write_bytes(header(RESULT_COLUMNS) + b"Mint.a.0,pass,,\r\n")
    junit, machine = tmp_path / "j.xml", tmp_path / "j.json"
    assert main([*LINE, "--junit", str(junit), "--json", str(machine)]) == STOPPED
    (found,) = json.loads(machine.read_text())["views"]
    assert (found["state"], found["exit_code"]) == ("stopped", 3)
    assert found["notes"][0] == "It stopped: disk full."
    assert "stopped before the end, 3 calls done: disk full" in junit.read_text()


@pytest.mark.parametrize(("errors", "code"), [(0, PASSED), (2, IN_ERROR)])
def test_a_run_that_completes_tells_whether_all_passed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    errors: int,
    code: int,
) -> None:
    asked = session_gives(monkeypatch, report(errors=errors))
    assert main(LINE) == code
    assert asked == [RunConfig(Path("my dump.json"))]
    printed = capsys.readouterr()
    assert printed.out.startswith(f"3 APIs: {3 - errors} pass, {errors} error, 0 SKIP\n")
    assert "go on" not in printed.out
    assert printed.err == ""


def test_what_changes_nothing_is_said_in_a_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session_gives(monkeypatch, report())
    assert main([*LINE, "-n", "8", "-j"]) == PASSED
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("ray-precheck: -n 8 changes nothing: ")
    assert second.startswith("ray-precheck: -j changes nothing: ")


@pytest.mark.parametrize("errors", [0, 2])
def test_a_run_that_stops_prints_the_command_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], errors: int
) -> None:
    session_gives(monkeypatch, report(errors=errors, completed=False, stop_reason="disk full"))
    assert main(LINE) == STOPPED
    assert capsys.readouterr().out.endswith(
        "\nStopped before the end: disk full. To go on:\n"
        f"  ray-precheck run_ut -api_info 'my dump.json' -csv_path {FILES.result}\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("-d 9: no such device"), 2, "ray-precheck: error: -d 9: no such device\n"),
        (DumpError("x.json is no dump"), 2, "ray-precheck: error: x.json is no dump\n"),
        (StoppedError("the disk is full"), 3, "ray-precheck: error: the disk is full\n"),
        (KeyboardInterrupt(), 3, "ray-precheck: interrupted\n"),
        (
            RuntimeError("two\nlines"),
            3,
            "ray-precheck: internal error: RuntimeError: two lines (--debug shows the traceback)\n",
        ),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    session_gives(monkeypatch, error)
    assert main(LINE) == code
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("error", [DumpError("no dump"), RuntimeError("a fault of ours")])
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    session_gives(monkeypatch, error)
    with pytest.raises(type(error)):
        main([*LINE, "--debug"])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["run_ut"], "-api_info"),
        (["fly", "-api_info", "d.json"], "fly"),
        ([*LINE, "-d", "x"], "'x'"),
        ([*LINE, "-d", "-1"], "-d -1"),
        ([*LINE, "-d", "0", "0"], "more than once"),
        ([*LINE, "--seed", "x"], "'x'"),
        ([*LINE, "--no-such-option"], "--no-such-option"),
        (["-f", "jax", *LINE], "'jax'"),
        ([*LINE, "-n", "0"], "-n 0 is wrong"),
        ([*LINE, "-n", "65"], "-n 65 is wrong"),
        ([*LINE, "--max-memory", "inf"], "--max-memory inf is wrong"),
        ([*LINE, "--force"], "--force needs -csv_path"),
        ([*LINE, "-api_info", "other.json"], "given twice"),
        ([*LINE, "-config", "no such file"], "cannot read no such file"),
        ([*LINE, "-k", "a and"], "ends where a word is expected"),
        ([*LINE, "--device-type", "tpu\n"], "tpu"),
    ],
)
def test_a_wrong_option_is_exit_code_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert main(arguments) == UNUSABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ray-precheck: error: ")
    assert part in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["run_ut", "-api_info", "no\nsuch.json"], [*LINE, "--no\nsuch"]]
)
def test_a_line_break_in_an_argument_makes_no_second_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == UNUSABLE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_dump_is_exit_code_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "dump.json"
    assert main(["run_ut", "-api_info", str(missing), "-o", str(tmp_path / "out")]) == UNUSABLE
    printed = capsys.readouterr()
    assert str(missing) in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["run_ut", "--help"]])
def test_help_is_exit_code_0(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    printed = capsys.readouterr()
    help_text = " ".join(printed.out.split())
    assert "4 finished, but nothing could be checked" in help_text
    assert printed.err == ""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "use",
    [
        "import ray_precheck",
        "main(['--help'])",
        "main(['--version'])",
        "main(['run_ut', '--help'])",
        "main(['run_ut', '-api_info', 'd.json', '-d', 'x'])",
        "main(['run_ut', '-api_info', '/no/such/dump.json'])",
    ],
)
def test_help_and_wrong_options_load_no_framework(use: str) -> None:
    heavy = ("ray", "torch", "torch_npu", "mindspore", "pandas")
    done = run_python(
        "import sys\n"
        "from ray_precheck.cli import main\n"
        "try:\n"
        f"    {use}\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print('LOADED', sorted(set({heavy!r}) & set(sys.modules)))\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_the_package_loads_its_parts_as_they_are_asked_for() -> None:
    done = run_python(
        "import sys\n"
        "import ray_precheck, ray_precheck.cli\n"
        "print(sorted({'numpy', 'ray_precheck.commands.precheck.run'} & set(sys.modules)))\n"
        "print([n for n in ray_precheck.__all__ if n not in dir(ray_precheck)])\n"
        "print([n for n in ray_precheck.__all__ if getattr(ray_precheck, n).__name__ != n])\n"
        "from ray_precheck.commands.precheck.run import run\n"
        "print(run is ray_precheck.run, hasattr(ray_precheck, 'no_such_name'))\n"
    )
    assert done.stdout.splitlines() == ["[]", "[]", "[]", "True False"], done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck", "run_ut"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == UNUSABLE
    assert done.stdout == ""
    assert done.stderr.startswith("ray-precheck: error: ")
    assert "Traceback" not in done.stderr
