"""One release in its environment: made, laid out, captured under, prechecked, with a planted fault, removed.

Comes in: an `Adapter`, a folder. Goes out: a `Trialled`. Called by `main`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.matrix.environment import EnvironmentFailed, find_python
from scripts.matrix.trial import Verdict, clean_environ, verdicts_of
from scripts.msadapter.adapters import Adapter
from scripts.msadapter.layout import PLANTED, lay_out, with_fault

ROOT = Path(__file__).resolve().parents[2]
STEP = Path(__file__).with_name("step.py")
STANDARDS = ("msprobe", "auto")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")
# What a copy of the package needs to be installed from.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "ray_precheck")
_LIMIT_S = 3600


@dataclass(frozen=True, slots=True)
class Captured:
    """A capture: its calls, the versions under which it was made, what raised there."""

    calls: int
    versions: Mapping[str, str]
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trialled:
    """What was found with a release; `failure` says where it ended, "" where it came to its end.

    `checked` has the verdicts of each call by standard, `blamed` those calls that are an error with the
    planted fault and none without it.
    """

    adapter: Adapter
    failure: str = ""
    captured: Captured | None = None
    checked: Mapping[str, Mapping[str, Verdict]] = field(default_factory=dict)
    blamed: tuple[str, ...] = ()


class StepFailed(Exception):
    """A command of a trial failed; the message has its last words."""


def try_adapter(adapter: Adapter, folder: Path, *, keep: bool) -> Trialled:
    """Try a release in `folder`/its name, of which the captures stay and, if asked, the environment."""
    place = folder / adapter.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    captured: Captured | None = None
    checked: dict[str, Mapping[str, Verdict]] = {}
    try:
        python = _environment(adapter, place / "env")
        unpack(adapter, python, place / "lib")
        captured = _capture(python, place / "lib", place / "capture")
        checker = python if adapter.runs else Path(sys.executable)
        for standard in STANDARDS:
            checked[standard] = _check(adapter, checker, place / "lib", place / "capture", standard)
        with_fault(adapter, place / "lib", place / "faulty")
        if not adapter.runs:
            _capture(python, place / "faulty", place / "faulty_capture")
        faulty = place / ("capture" if adapter.runs else "faulty_capture")
        wrong = _check(adapter, checker, place / "faulty", faulty, "auto")
        blamed = tuple(sorted(blamed_in(wrong) - blamed_in(checked["auto"])))
    except (EnvironmentFailed, StepFailed, FileNotFoundError) as error:
        return Trialled(adapter, str(error), captured, checked)
    finally:
        if not keep:
            shutil.rmtree(place / "env", ignore_errors=True)
            shutil.rmtree(place / "faulty", ignore_errors=True)
    return Trialled(adapter, "", captured, checked, blamed)


def blamed_in(verdicts: Mapping[str, Verdict]) -> set[str]:
    """Return the calls of which a direction is an error."""
    return {
        name for name, (forward, backward, _) in verdicts.items() if "error" in (forward, backward)
    }


def right_blame(blamed: Sequence[str]) -> bool:
    """Return whether the planted fault, and nothing else, is blamed."""
    return bool(blamed) and all(name.rpartition(".")[0] == PLANTED for name in blamed)


def _environment(adapter: Adapter, folder: Path) -> Path:
    _run([str(find_python(adapter.python)), "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    _run([str(python), *_PIP, "--no-compile", *adapter.host])
    if adapter.runs:
        source = folder / "source"
        source.mkdir()
        for name in _SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, source / name)
        _run([str(python), *_PIP, "--no-compile", "-c", str(ROOT / "constraints.txt"), str(source)])
    return python


def unpack(adapter: Adapter, python: Path, folder: Path) -> None:
    """Have pip unpack a release into `folder`, and lay it out there as a package `torch`.

    Raises:
        StepFailed: pip cannot get it.
    """
    # Without what it asks for: that is whole other packages, and other versions of NumPy and MindSpore.
    _run(
        [
            str(python),
            *_PIP,
            "--no-compile",
            "--no-deps",
            "--target",
            str(folder),
            adapter.requirement,
        ]
    )
    lay_out(adapter, folder)


def _capture(python: Path, library: Path, folder: Path) -> Captured:
    said = _run([str(python), str(STEP), str(folder)], library)
    told = json.loads(said.strip().splitlines()[-1])
    data = json.loads((folder / "dump.json").read_text())["data"]
    calls = sum(name.endswith(".forward") for name in data)
    return Captured(calls, {name: told[name] for name in ("mindspore", "torch")}, told["failed"])


def _check(
    adapter: Adapter, python: Path, library: Path, capture: Path, standard: str
) -> Mapping[str, Verdict]:
    """Check a capture as a user's command does; returns the verdict of each call."""
    out = capture / f"checked_{library.name}_{standard}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    command = [str(python), "-m", "ray_precheck", "run_ut", "-api_info", str(capture / "dump.json")]
    command += ["-o", str(out), "--device-type", "cpu", "--standard", standard]
    command += ["--tested", "device" if adapter.runs else "dump"]
    said = _run(command, library if adapter.runs else ROOT, codes=(0, 1))
    found: dict[str, Verdict] = {}
    for path in out.glob("accuracy_checking_result_*.csv"):
        found |= verdicts_of(path.read_text(encoding="utf-8-sig"))
    if not found:
        raise StepFailed(f"the precheck under {standard} has no row: {_last_words(said)}")
    return found


def _run(command: Sequence[str], library: Path | None = None, codes: Sequence[int] = (0,)) -> str:
    """Run a command with `library` as PYTHONPATH; returns what it printed.

    Raises:
        StepFailed: it ended with another code.
    """
    environ = clean_environ(Path(command[0]))
    if library is not None:
        environ["PYTHONPATH"] = str(library)
    done = subprocess.run(
        command, env=environ, cwd=os.path.expanduser("~"), capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode not in codes:
        words = " ".join(str(part) for part in command[1:])
        raise StepFailed(f"{words} ended with {done.returncode}: {_last_words(done.stderr)}")
    return done.stdout


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
