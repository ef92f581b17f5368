"""What was found in a cell, as a file, so that a matrix which is interrupted goes on.

Comes in: an environment, its tests, its prechecks. Goes out: a `CellResult`, in `{folder}/{cell}.json`.
Called by `attempt` and `main`, read by `table`.
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

    `tests` has a run of pytest for each of the cell's arguments, named by them; `prechecks` a run of each
    capture under each standard, named "{capture} {standard}". Both are filled piece by piece.
    """

    name: str
    date: str
    machine: str
    failure: str = ""
    plan: tuple[Planned, ...] = ()
    clashes: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    tests: Mapping[str, SuiteRun] = field(default_factory=dict)
    prechecks: Mapping[str, Precheck] = field(default_factory=dict)


def today() -> str:
    """Return the date as the table shows it."""
    return time.strftime("%Y-%m-%d")


def machine_words() -> str:
    """Return a few words about this machine."""
    return f"{platform.system()} {platform.machine()}"


def write_found(found: CellResult, folder: Path) -> None:
    """Write down what was found."""
    text = json.dumps(dataclasses.asdict(found), indent=1)
    path = folder / f"{found.name}.json"
    # A run that is interrupted here must not cost the pieces from before.
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)


def read_found(path: Path) -> CellResult:
    """Return what was written down.

    Raises:
        FileNotFoundError: nothing was found in that cell yet.
    """
    noted = json.loads(path.read_text(encoding="utf-8"))
    tests = {
        name: SuiteRun(**(run | {"failed": tuple(run["failed"])}))
        for name, run in noted["tests"].items()
    }
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
        tests,
        prechecks,
    )
