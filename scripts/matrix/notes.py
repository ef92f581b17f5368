"""What was found in a cell, as a file, so that a matrix which is interrupted goes on.

Comes in: an environment, its tests, its prechecks. Goes out: a `CellResult`, in `{folder}/{cell}.json`.
Called by `main`, read by `table`.
"""

import dataclasses
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.matrix.environment import Planned
from scripts.matrix.trial import Precheck, SuiteRun


@dataclass(frozen=True, slots=True)
class CellResult:
    """What was found in a cell; `failure` says why it could not be made, "" where it was.

    `prechecks` has a run of each capture under each standard, named "{capture} {standard}".
    """

    name: str
    date: str
    machine: str
    failure: str = ""
    plan: tuple[Planned, ...] = ()
    clashes: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    tests: SuiteRun | None = None
    prechecks: Mapping[str, Precheck] = field(default_factory=dict)


def today() -> str:
    """Return the date as the table shows it."""
    return time.strftime("%Y-%m-%d")


def machine_words() -> str:
    """Return a few words about this machine."""
    return f"{platform.system()} {platform.machine_words()}"


def write_found(found: CellResult, folder: Path) -> None:
    """Write down what was found."""
    text = json.dumps(dataclasses.asdict(found), indent=1)
    (folder / f"{found.name}.json").write_text(text, encoding="utf-8")


def read_found(path: Path) -> CellResult:
    """Return what was written down.

    Raises:
        FileNotFoundError: nothing was found in that cell yet.
    """
    noted = json.loads(path.read_text(encoding="utf-8"))
    tests = noted["tests"]
    prechecks = {
        name: Precheck(
            run["code"],
            {api: (row[0], row[1], row[2]) for api, row in run["verdicts"].items()},
            run["said"],
        )
        for name, run in noted["prechecks"].items()
    }
    return CellResult(
        noted["name"],
        noted["date"],
        noted["machine"],
        noted["failure"],
        tuple(Planned(**planned) for planned in noted["plan"]),
        noted["clashes"],
        noted["versions"],
        tests and SuiteRun(**(tests | {"failed": tuple(tests["failed"])})),
        prechecks,
    )
