"""The tests and the shipped captures in one environment.

Comes in: an environment's interpreter, the tree with the tests. Goes out: what the tests said, and the
verdict of every call of the captures. Called by `main`.
"""

import csv
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STANDARDS = ("msprobe", "auto")
# Forward verdict, backward verdict, message.
Verdict = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """What a run of the tests said; `failed` are the identifiers, `skipped` the counts by reason."""

    passed: int
    failed: tuple[str, ...]
    skipped: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Precheck:
    """What a precheck of one capture said: its exit code, the verdict of each call, its last words."""

    code: int
    verdicts: Mapping[str, Verdict]
    said: str


def run_tests(python: Path, tree: Path, chosen: Sequence[str], folder: Path) -> SuiteRun:
    """Run chosen tests of the tree with an environment's interpreter; leaves their log in `folder`."""
    report = folder / "tests.xml"
    report.unlink(missing_ok=True)
    workers = str((os.cpu_count() or 1) + 1)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-n", workers]
    # The tests of a cluster share one of each process.
    dist = "loadfile" if "tests/cluster" in chosen else "worksteal"
    command += ["--dist", dist, "--durations", "15", f"--junitxml={report}", *chosen]
    begin = time.monotonic()
    with (folder / "tests.log").open("a", encoding="utf-8") as log:
        done = subprocess.run(
            command, cwd=tree, env=clean_environ(python), stdout=log, stderr=subprocess.STDOUT
        )
    if not report.exists():
        return SuiteRun(0, (f"pytest {' '.join(chosen)} ended with {done.returncode}",), {}, 0.0)
    return suite_of(report.read_text(encoding="utf-8"), time.monotonic() - begin)


def together(runs: Sequence[SuiteRun]) -> SuiteRun:
    """Return several runs of tests as one."""
    skipped = Counter[str]()
    for run in runs:
        skipped.update(run.skipped)
    return SuiteRun(
        sum(run.passed for run in runs),
        tuple(name for run in runs for name in run.failed),
        dict(skipped),
        sum(run.seconds for run in runs),
    )


def suite_of(report: str, seconds: float) -> SuiteRun:
    """Return what a JUnit report says. A module that cannot be loaded counts as a failed test."""
    passed, failed, skipped = 0, [], Counter[str]()
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        kinds = {child.tag: child for child in case}
        if "failure" in kinds or "error" in kinds:
            failed.append(name)
        elif "skipped" in kinds:
            skipped[_reason(kinds["skipped"].get("message", ""))] += 1
        else:
            passed += 1
    return SuiteRun(passed, tuple(sorted(failed)), dict(skipped), seconds)


def _reason(message: str) -> str:
    """Return a skip's reason without the exception's name and its module."""
    return message.strip().splitlines()[0] if message.strip() else "no reason is given"


def precheck(python: Path, dump: Path, standard: str, out: Path) -> Precheck:
    """Check a capture on the CPU, as a user's command does."""
    out.mkdir(parents=True, exist_ok=True)
    command = [str(python.with_name("ray-precheck")), "run_ut", "-api_info", str(dump)]
    command += ["-o", str(out), "--device-type", "cpu", "--standard", standard]
    environ = clean_environ(python)
    done = subprocess.run(command, cwd=out, env=environ, capture_output=True, text=True)
    (out / "said.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    verdicts: dict[str, Verdict] = {}
    for path in sorted(out.glob("accuracy_checking_result_*.csv")):
        verdicts |= verdicts_of(path.read_text(encoding="utf-8-sig"))
    lines = (done.stderr or done.stdout).strip().splitlines()
    return Precheck(done.returncode, verdicts, "" if verdicts or not lines else lines[-1])


def verdicts_of(text: str) -> dict[str, Verdict]:
    """Return the verdicts and the message of each API of a result CSV."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(text.splitlines())
    return {
        row["API Name"]: (
            row["Forward Test Success"],
            row["Backward Test Success"],
            row["Message"],
        )
        for row in rows
    }


def clean_environ(python: Path) -> dict[str, str]:
    """Return this process's environment without what would lead into another Python."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    return environ | {"PATH": f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"}
