"""ray_precheck: find the operators of a training step that are numerically wrong on a device.

`precheck` runs a dump of msprobe's and returns a `PrecheckReport`; `rerun` checks one API again
that a run with `-save_error_data` saved; `run_ranks` runs the dumps that `find_dumps` finds below a
folder; `compare_captures` compares two captures, `locate_captures` finds the operator to blame,
`diagnose_captures` does both and more; `check_ranks` compares the ranks of one run; `reference`
declares a bench of one's own. Everything that can go wrong is a `PrecheckError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ray_precheck.processes import leave_marked_home

if TYPE_CHECKING:
    from ray_precheck.bench.declared import reference
    from ray_precheck.commands.compare.run import ComparisonReports, compare_captures
    from ray_precheck.commands.diagnose.run import Diagnosis, diagnose_captures
    from ray_precheck.commands.locate.run import locate_captures
    from ray_precheck.commands.locate.search import LocationReport
    from ray_precheck.commands.precheck.run import (
        PrecheckReport,
        RanksReport,
        precheck,
        rerun,
        run,
        run_ranks,
    )
    from ray_precheck.commands.ranks.run import RankChecks, check_ranks
    from ray_precheck.dump.folders import find_dumps
    from ray_precheck.errors import (
        BackendMissingError,
        DeviceError,
        DumpError,
        PrecheckError,
        ResumeError,
        StoppedError,
        UsageError,
    )
    from ray_precheck.replay.config import RunConfig

leave_marked_home()

__version__ = "0.1.0"

__all__ = [
    "BackendMissingError",
    "ComparisonReports",
    "DeviceError",
    "Diagnosis",
    "DumpError",
    "LocationReport",
    "PrecheckError",
    "PrecheckReport",
    "RankChecks",
    "RanksReport",
    "ResumeError",
    "RunConfig",
    "StoppedError",
    "UsageError",
    "check_ranks",
    "compare_captures",
    "diagnose_captures",
    "find_dumps",
    "locate_captures",
    "precheck",
    "reference",
    "rerun",
    "run",
    "run_ranks",
]

# Every process of a run imports this package, and none needs all of it: a name is loaded when it is
# asked for, which saves each of them 0.1 s (measured).
_HOMES = {
    "RunConfig": "replay.config",
    "find_dumps": "dump.folders",
    "reference": "bench.declared",
    **dict.fromkeys(("ComparisonReports", "compare_captures"), "commands.compare.run"),
    **dict.fromkeys(("Diagnosis", "diagnose_captures"), "commands.diagnose.run"),
    "LocationReport": "commands.locate.search",
    "locate_captures": "commands.locate.run",
    **dict.fromkeys(("RankChecks", "check_ranks"), "commands.ranks.run"),
    **dict.fromkeys(("RanksReport", "run_ranks"), "commands.precheck.run"),
    **dict.fromkeys(("PrecheckReport", "precheck", "rerun", "run"), "commands.precheck.run"),
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "errors"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
