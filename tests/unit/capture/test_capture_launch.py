"""Scripts run under the command as they would alone. None of them has a framework."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from ray_precheck.capture.settings import capture_settings
from ray_precheck.capture.writing.claim import claim

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[3]


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "ray_precheck", "capture", "-o", str(folder / "dump"), *words]


def captured(
    folder: Path, *words: str, path: str = "", text: str = ""
) -> "subprocess.CompletedProcess[str]":
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), path)))}
    return subprocess.run(
        command(folder, *words),
        capture_output=True,
        text=True,
        input=text,
        cwd=folder,
        env=variables,
        check=False,
    )


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_streams_arguments_and_the_exit_code_are_the_scripts_own(tmp_path: Path) -> None:
    name = script(tmp_path, "import sys; print(input(), sys.argv[1:]); sys.exit(3)")
    done = captured(
        tmp_path, "--", sys.executable, name, "--level", "L7", "--debug", "--", "x", text="hello\n"
    )
    assert done.returncode == 3
    assert done.stdout == "hello ['--level', 'L7', '--debug', '--', 'x']\n"
    assert done.stderr.splitlines() == [
        "ray-precheck: capture: nothing was captured: neither PyTorch nor MindSpore was imported"
    ]
    assert not (tmp_path / "dump").exists()


def test_a_script_that_a_signal_ends_ends_the_command_so(tmp_path: Path) -> None:
    done = captured(tmp_path, "--", "/bin/sh", "-c", "kill -KILL $$")
    assert done.returncode == -signal.SIGKILL
    assert "nothing was captured: no Python was started" in done.stderr


def test_signals_are_passed_on(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready", flush=True)
        time.sleep(300)
        """,
    )
    with subprocess.Popen(
        command(tmp_path, "--", sys.executable, name),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 7


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs; one that only waits for its parent does not.

    Where another test of this process adopted orphans (`adopt_orphans`), nobody waits for them.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_script_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    name = script(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(300)")
    with subprocess.Popen(
        command(tmp_path, "--", sys.executable, name),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
    until = time.monotonic() + 60
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(child)


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_a_python_that_leaves_the_capture_out_is_named(tmp_path: Path, flag: str) -> None:
    done = captured(tmp_path, "--", sys.executable, flag, "-c", "print(1)")
    assert done.returncode == 0
    assert f"Python was started with {flag}, by which it leaves the capture out" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "nosuchprogram"], "the script nosuchprogram is not found"),
        (["--", sys.executable, "-u", "nosuch.py"], "the script nosuch.py of"),
        (["--", "./data.py"], "try python data.py"),
        ([], "the script is missing"),
        (["--finish", "dump", "--", "x"], "--finish runs no script"),
        (["--finish", "nosuch"], "nosuch does not exist"),
        (["--steps", "2-0", "--", "true"], "--steps has '2-0'"),
        (["--level", "L3", "--", "true"], "--level 'L3' is unknown|level is 'L3'"),
        (["--max-gb", "0", "--", "true"], "--max-gb 0"),
        (["--keep-steps", "0", "--", "true"], "--keep-steps 0 is wrong"),
        (["--scope", "a", "--", "true"], "scope has 1 names"),
        (["--list", "name-regex(()", "--", "true"], "no regular expression"),
        (["--data-mode", "inputs", "--", "true"], "data_mode has inputs"),
        (["--task", "structure", "--", "true"], "give it level L0 or mix"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_runs(
    tmp_path: Path, words: list[str], said: str
) -> None:
    import re

    (tmp_path / "data.py").write_text("")
    done = captured(tmp_path, *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(said, done.stderr)


def test_an_out_path_that_cannot_be_is_refused_before_the_script_starts(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text("")
    done = captured(tmp_path, "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / 'dump'} is a file" in done.stderr
    (tmp_path / "dump").unlink()
    claim(capture_settings(path=tmp_path / "dump", level="mix"), "pytorch")
    done = captured(tmp_path, "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "level mix there, L1 here" in done.stderr


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.mine = __file__")
    text = "import sys, sitecustomize; print(sys.mine == sitecustomize.__file__, len(sys.path))"
    alone = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(own)))},
        check=True,
    )
    done = captured(tmp_path, "--", sys.executable, "-c", text, path=str(own))
    assert done.stdout == alone.stdout
    assert done.stdout.startswith("True")


def test_a_framework_that_cannot_be_captured_does_not_end_the_script(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    name = script(
        tmp_path,
        """
        import torch
        print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
        """,
    )
    done = captured(tmp_path, "--", sys.executable, name)
    assert done.returncode == 0
    assert done.stdout == "SourceFileLoader SourceFileLoader\n"
    assert "pytorch cannot be captured" in done.stderr


def test_waiting_for_a_framework_imports_nothing(tmp_path: Path) -> None:
    text = "import sys; print(*sorted(sys.modules))"
    alone = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    done = captured(tmp_path, "--", sys.executable, "-c", text)
    assert {*done.stdout.split()} - {*alone.stdout.split()} <= {"sitecustomize"}
