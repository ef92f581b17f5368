"""A virtual environment as a host has it, and what installing the package would change there.

Comes in: a cell, a folder. Goes out: an interpreter with the package, and the plan of pip's dry run
from before. Called by `main`.
"""

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.matrix.cells import Cell

# What the tests need besides the package. The extra `dev` has tools that ask for NumPy 2.
_TEST_TOOLS = (
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "junitparser",
    "vermin",
)
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class EnvironmentFailed(Exception):
    """An environment cannot be made; the message says at which step and why."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A package that pip would install, and the version that it would replace ("" for none)."""

    name: str
    version: str
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment with the package and the tools of its tests."""

    python: Path
    plan: tuple[Planned, ...]
    versions: Mapping[str, str]
    clashes: str


def make(cell: Cell, tree: Path, folder: Path) -> Environment:
    """Make the environment of a cell in `folder`, with the package from `tree`.

    An environment that was kept there is used again, with the package of `tree` in it; the plan is the
    one from when it was made.

    Raises:
        EnvironmentFailed: a Python is missing, or pip cannot install something.
    """
    python = folder / "bin" / "python"
    noted = folder / "plan.json"
    if noted.exists():
        plan = tuple(Planned(**entry) for entry in json.loads(noted.read_text()))
        _pip(python, "install", "--quiet", "--no-deps", "--force-reinstall", str(tree))
    else:
        plan = _make_host(cell, tree, folder, python)
        _pip(python, "install", "--quiet", "--no-compile", str(tree))
        noted.write_text(json.dumps([dataclasses.asdict(planned) for planned in plan]))
    _pip(python, "install", "--quiet", "--no-compile", *_TEST_TOOLS)
    checked = subprocess.run([str(python), *_PIP, "check"], capture_output=True, text=True)
    clashes = "" if checked.returncode == 0 else checked.stdout.strip()
    return Environment(python, plan, _installed(python), clashes)


def _make_host(cell: Cell, tree: Path, folder: Path, python: Path) -> tuple[Planned, ...]:
    """Install what the host has; returns what pip would bring there for the package."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([str(find_python(cell.python)), "-m", "venv", str(folder)], "making the environment")
    _pip(python, "install", "--quiet", "--no-compile", *cell.host)
    report = _pip(python, "install", "--quiet", "--dry-run", "--report", "-", str(tree))
    return planned_of(json.loads(report), _installed(python))


def planned_of(report: Mapping[str, object], installed: Mapping[str, str]) -> tuple[Planned, ...]:
    """Return what pip's report of a dry run would install, with what of it is there already."""
    chosen = report["install"]
    assert isinstance(chosen, list)
    found = []
    for entry in chosen:
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        found.append(Planned(name, version, installed.get(normalised(name), "")))
    return tuple(sorted(found, key=lambda planned: normalised(planned.name)))


def normalised(name: str) -> str:
    """Return a distribution's name as PEP 503 compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def find_python(minor: str) -> Path:
    """Return an interpreter of a minor version ("3.12"), from the PATH or from pyenv.

    Raises:
        EnvironmentFailed: there is none.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [shutil.which(f"python{minor}"), shutil.which("python3")]
    candidates += [str(path / "bin" / "python") for path in root.glob(f"versions/{minor}.*")]
    for candidate in candidates:
        if candidate and _minor_of(candidate) == minor:
            return Path(candidate)
    raise EnvironmentFailed(
        f"Python {minor} is neither on the PATH nor among pyenv's versions in {root}; install it"
    )


def _minor_of(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    return done.stdout.strip()


def _installed(python: Path) -> dict[str, str]:
    listed = json.loads(_pip(python, "list", "--format", "json"))
    return {normalised(entry["name"]): entry["version"] for entry in listed}


def _pip(python: Path, *arguments: str) -> str:
    return _run([str(python), *_PIP, *arguments], f"pip {' '.join(arguments)}")


def _run(command: Sequence[str], step: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentFailed(f"{step} failed: {_last_lines(done.stderr or done.stdout)}")
    return done.stdout


def _last_lines(text: str, count: int = 5) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-count:])
