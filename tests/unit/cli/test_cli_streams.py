"""A reader who leaves early ends no command, changes no exit code and is not worth a word."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

_LONG = "x" * 100_000
# What a command does: it prints much, more than a pipe holds, then ends with its code.
_COMMAND = (
    "import sys; from ray_precheck.cli import command_line\n"
    "class Options: pass\n"
    "def execute(options, call):\n"
    "    for _ in range(20): print(sys.argv[1]); print(sys.argv[1], file=sys.stderr)\n"
    "    return 1\n"
    "Options.execute = staticmethod(execute)\n"
    "class Parser:\n"
    "    def parse_args(self, given): return Options\n"
    "command_line.build_parser = Parser\n"
    "sys.exit(command_line.entry())\n"
)


def run(redirections: str, text: str = _LONG) -> "subprocess.CompletedProcess[str]":
    """Run a command in a shell; what the shell prints at the end is the command's exit code."""
    script = f'"$PYTHON" -c "$COMMAND" {text} {redirections}'
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHON": sys.executable, "COMMAND": _COMMAND},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "redirections",
    [
        "2>/dev/null | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}",
        "2>&1 >/dev/null | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}",
        "2>&1 | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}",
        ">/dev/null 2>&-; echo $?",
        ">&- 2>/dev/null; echo $?",
        ">/dev/null 2>/dev/full; echo $?",
    ],
)
def test_the_exit_code_stays_that_of_the_command(redirections: str) -> None:
    done = run(redirections)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_nothing_is_said_about_a_reader_who_has_left() -> None:
    done = run("2>err.$$ | head -c 1; grep -v ^xxx err.$$; rm err.$$")
    assert (done.stdout, done.stderr) == ("x", "")


@pytest.mark.parametrize("text", [_LONG, "short"])
def test_results_that_cannot_be_written_are_an_error(text: str) -> None:
    done = run("2>&1 >/dev/full | grep -v -e ^xxx -e ^short; echo ${PIPESTATUS[0]}", text)
    said = done.stdout.splitlines()
    assert said[-1] == "3"
    assert len(said) == 2
    assert "No space left" in said[0]


def test_help_and_version_end_quietly_too() -> None:
    script = '"$PYTHON" -m ray_precheck run_ut --help | true; echo ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_what_a_terminal_obeys_and_what_is_no_text_are_escapes_on_both_streams() -> None:
    done = run(r"2>&1", "$'\\e[31m\\xff\\u202ea\\tb'")
    assert done.stdout.splitlines()[:2] == [r"\u001b[31m\udcff\u202ea" + "\tb"] * 2


def test_a_folder_whose_name_is_no_text_is_compared_and_named(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\x1b[31m")
    data = Path(__file__).parents[2] / "data" / "torch_cnn"
    for side in "tg":
        shutil.copytree(data, folder / side)
    sides = ["-tp", folder / "t", "-gp", folder / "g"]
    done = subprocess.run(
        [sys.executable, "-m", "ray_precheck", "compare", *sides, "-o", folder / "out"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rb"\udcff\u001b[31m/out/compare_result_" in done.stdout
