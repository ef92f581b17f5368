"""Starting a module of the package: no file of the working directory is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ray_precheck.interpreter import module_command

pytestmark = pytest.mark.unit
MODULE = "started_module"
# What it was given, where it was found, and which `json` it imports.
SOURCE = "import json, sys; print(__name__, sys.argv[1:], json.__file__)"


@pytest.mark.parametrize("version", [(3, 10), sys.version_info[:2]])
def test_a_module_is_not_taken_from_the_working_directory(
    version: tuple[int, ...], tmp_path: Path
) -> None:
    work, path = tmp_path / "work", tmp_path / "path"
    for folder, source in ((work, "raise SystemExit('of the working directory')"), (path, SOURCE)):
        folder.mkdir()
        (folder / f"{MODULE}.py").write_text(source)
    (work / "json.py").write_text("raise SystemExit('of the working directory')")
    done = subprocess.run(
        [*module_command(MODULE, version), "3", "x y"],
        cwd=work, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.startswith("__main__ ['3', 'x y'] ")
    assert str(work) not in done.stdout


@pytest.mark.parametrize("version", [(3, 10), sys.version_info[:2]])
def test_the_process_is_known_by_the_name_of_its_module(version: tuple[int, ...]) -> None:
    assert MODULE in module_command(MODULE, version)
