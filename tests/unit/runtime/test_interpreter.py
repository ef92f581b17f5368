"""Starting a module of the package, and the command: no file of the working directory is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ray_precheck.processes import HOME, module_command

pytestmark = pytest.mark.unit
MODULE = "started_module"
# What it was given, where it was found, and which `json` and `ray_precheck` it imports.
SOURCE = (
    "import json, sys, ray_precheck as p; print(__name__, sys.argv[1:], json.__file__, p.__file__)"
)
TRAPS = ("json.py", "argparse.py", "numpy.py", "ray_precheck.py")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory whose modules end the process that imports them."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in TRAPS:
        (folder / name).write_text(f"raise SystemExit('{name} of the working directory')")
    return folder


def run(command: list[str], work: Path, path: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )


def test_a_module_is_not_taken_from_the_working_directory(work: Path, tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    (path / f"{MODULE}.py").write_text(SOURCE)
    done = run([*module_command(MODULE), "3", "x y"], work, str(path))
    assert done.stderr == ""
    assert done.stdout.startswith("__main__ ['3', 'x y'] ")
    assert str(work) not in done.stdout
    assert f"{HOME}/ray_precheck/" in done.stdout


def test_the_folder_around_the_package_is_no_place_for_other_modules(work: Path) -> None:
    told = "import sys; print(sys.path)"
    command = module_command("code")
    done = run([*command[:2], command[2].partition("import runpy")[0] + told, HOME], work, "")
    assert done.stderr == ""
    assert f"'{HOME}'," not in done.stdout.partition("site-packages")[0]


def test_the_process_is_known_by_the_name_of_its_module() -> None:
    assert MODULE in module_command(MODULE)


@pytest.mark.parametrize("path", [":{home}", "{home}:", "{home}:.", ".:{home}"])
def test_the_command_imports_nothing_that_lies_where_it_is_started(path: str, work: Path) -> None:
    """By `python -m`, and as the installed script whose folder is not the working directory."""
    path = path.format(home=HOME)
    script = (
        "import sys; sys.path.remove(''); from ray_precheck.__main__ import main; sys.exit(main())"
    )
    (work / "ray_precheck.py").unlink()  # Python itself has to find the command.
    for start in (["-m", "ray_precheck"], ["-c", script]):
        done = run([sys.executable, *start, "compare", "--help"], work, path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "--mapping" in done.stdout or "usage" in done.stdout


@pytest.mark.parametrize(
    ("start", "path", "leads"),
    [
        (["-m", "told"], "", False),
        (["-m", "told"], "{home}", True),
        (["-c", "import told"], ".:{home}", True),
    ],
)
def test_workers_are_led_to_a_package_that_they_would_not_find(
    start: list[str], path: str, leads: bool, tmp_path: Path
) -> None:
    """A checkout in the working directory, as `python -m` runs it."""
    (tmp_path / "ray_precheck").symlink_to(Path(HOME) / "ray_precheck")
    (tmp_path / "told.py").write_text(
        "import sys; from ray_precheck.processes import job_path; print(job_path())"
    )
    home = str(tmp_path)
    environment = {**os.environ, "PYTHONPATH": path.format(home=home), "PYTHONNOUSERSITE": "1"}
    done = subprocess.run(
        [sys.executable, *start],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == ("[]\n" if leads else f"['{home}/.']\n")


def test_a_command_runs_where_the_folder_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = (
        f"import os, sys; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r});"
        " from ray_precheck.__main__ import main; sys.exit(main())"
    )
    done = run([sys.executable, "-c", script, "compare", "--help"], tmp_path, f"{HOME}:.")
    assert (done.returncode, done.stderr) == (0, "")
