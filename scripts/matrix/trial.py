"""The tests and the shipped captures in one environment.

Comes in: an environment's interpreter, the tree with the tests. Goes out: what the tests said, and the
verdict of every call of the captures. Called by `attempt`.
"""

import csv
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STANDARDS = ("msprobe", "auto")
# Forward verdict, backward verdict, message.
Verdict = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """What a run of the tests said; `failed` are the identifiers, `skipped` the counts by reason.

    `again` counts the tests that had failed and did not when they were run again alone; they are
    among `passed` and `skipped`.
    """

    passed: int
    failed: tuple[str, ...]
    skipped: Mapping[str, int]
    seconds: float
    again: int = 0


@dataclass(frozen=True, slots=True)
class Precheck:
    """What a precheck of one capture said: its exit code, the verdict of each call, its last words."""

    code: int
    verdicts: Mapping[str, Verdict]
    said: str


def run_tests(
    python: Path, tree: Path, chosen: Sequence[str], folder: Path, alone: bool = False
) -> SuiteRun:
    """Run chosen tests of the tree with an environment's interpreter; leaves their log in `folder`.

    With `alone` they run one after the other.
    """
    report = folder / "tests.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    if not alone:
        # The tests of a cluster share one of each process.
        dist = "loadfile" if chosen[0].startswith("tests/cluster") else "worksteal"
        command += ["-n", str((os.cpu_count() or 1) + 1), "--dist", dist]
    command += ["--durations", "15", f"--junitxml={report}"]
    # The first family of reports names the files of the tests, which `failed` does, too.
    command += ["-o", "junit_family=xunit1", *chosen]
    begin = time.monotonic()
    with (folder / "tests.log").open("a", encoding="utf-8") as log:
        done = subprocess.run(
            command, cwd=tree, env=clean_environ(python), stdout=log, stderr=subprocess.STDOUT
        )
    if not report.exists():
        return SuiteRun(0, (f"pytest {' '.join(chosen)} ended with {done.returncode}",), {}, 0.0)
    return suite_of(report.read_text(encoding="utf-8"), time.monotonic() - begin)


def run_again(python: Path, tree: Path, before: SuiteRun, folder: Path) -> SuiteRun:
    """Run the tests that failed again, one by one; returns the run with their outcome of now."""
    run_tests(python, tree, functions_of(before.failed), folder, alone=True)
    report = folder / "tests.xml"
    return mended(before, report.read_text(encoding="utf-8")) if report.exists() else before


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
        sum(run.again for run in runs),
    )


def functions_of(failed: Sequence[str]) -> list[str]:
    """Return the test functions of identifiers, without the brackets of their parameters.

    Brackets may hold what no command line takes; a function is run with all its parameters.
    """
    return sorted({name.partition("[")[0] for name in failed})


def mended(before: SuiteRun, report: str) -> SuiteRun:
    """Return a run whose failed tests have the outcome of a later run of them alone.

    `report` is that run's JUnit report. A test that it lacks has still failed, unless its function ran
    there with parameters of other names and did not fail; one that had passed before and fails now
    has failed.
    """
    outcomes = dict(_outcomes(report))
    by_function: dict[str, set[str]] = {}
    for name, (kind, _) in outcomes.items():
        by_function.setdefault(name.partition("[")[0], set()).add(kind)
    failed, passed, skipped = [], before.passed, Counter(before.skipped)
    for name in before.failed:
        others = by_function.get(name.partition("[")[0], {"failed"})
        renamed = "failed" if "failed" in others else "passed"
        kind, reason = outcomes.get(name, (renamed, ""))
        if kind == "failed":
            failed.append(name)
        elif kind == "skipped":
            skipped[reason] += 1
        else:
            passed += 1
    fresh = {name for name, (kind, _) in outcomes.items() if kind == "failed"} - set(before.failed)
    again = before.again + len(before.failed) - len(failed)
    passed -= len(fresh)
    return SuiteRun(passed, tuple(sorted([*failed, *fresh])), dict(skipped), before.seconds, again)


def suite_of(report: str, seconds: float) -> SuiteRun:
    """Return what a JUnit report says. A module that cannot be loaded counts as a failed test."""
    outcomes = list(_outcomes(report))
    failed = sorted(name for name, (kind, _) in outcomes if kind == "failed")
    skipped = Counter(reason for _, (kind, reason) in outcomes if kind == "skipped")
    passed = len(outcomes) - len(failed) - skipped.total()
    return SuiteRun(passed, tuple(failed), dict(skipped), seconds)


def _outcomes(report: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each test's identifier, with "passed", "failed" or "skipped" and the reason of a skip."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        if "failure" in kinds or "error" in kinds:
            yield _identifier(case), ("failed", "")
        elif "skipped" in kinds:
            yield _identifier(case), ("skipped", _reason(kinds["skipped"].get("message", "")))
        else:
            yield _identifier(case), ("passed", "")


def _identifier(case: ElementTree.Element) -> str:
    """Return what pytest takes on its command line for a test."""
    path, module = case.get("file", ""), case.get("classname", "")
    classes = module[len(path.removesuffix(".py")) + 1 :].split(".")
    return "::".join(filter(None, [path, *classes, case.get("name", "")]))


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
    """Return this process's environment without what would lead into another Python.

    Nor without compiled modules: the tests start hundreds of processes that load a framework.
    """
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    }
    return environ | {"PATH": f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"}
