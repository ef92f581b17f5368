"""The scripts by which shells complete the command."""

import shutil
import subprocess

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.unit
ASK = """
source /dev/stdin
ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $completer; echo "${{COMPREPLY[@]}}"; }}
completer=$(complete -p ray-precheck | sed 's/.*-F \\([^ ]*\\).*/\\1/')
{asked}
"""


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", shell])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("ask ray-precheck run_o", "run_overflow_check"),
        ("ask ray-precheck run_ut --seed 1 --dev", "--device --devices --device-type"),
        ("ask ray-precheck locate --addr", "--address"),
    ],
)
def test_bash_completes_commands_and_their_options(
    capsys: pytest.CaptureFixture[str], asked: str, answer: str
) -> None:
    script = script_for("bash", capsys)
    done = subprocess.run(
        ["bash", "-c", ASK.format(asked=asked)],
        input=script,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"{answer}\n", "")


def test_zsh_takes_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for("zsh", capsys)
    assert script.startswith("#compdef ray-precheck")
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=script, text=True, check=True)


def test_another_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "cmd.exe"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--print-completion cmd.exe: there are scripts for bash, zsh" in said
