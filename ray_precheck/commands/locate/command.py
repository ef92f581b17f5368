"""The command locate: the operator to blame, and what only passes its error on.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from ray_precheck.commands.locate.options import LocationConfig
from ray_precheck.options.commands import (
    IN_ERROR,
    NOTHING_CHECKED,
    PASSED,
    Command,
    Invocation,
    given_values,
)
from ray_precheck.options.declared import by_section, options_of
from ray_precheck.options.shared import MAX_ERR, MEGENGINE, WITHOUT_DEVICE

if TYPE_CHECKING:
    from ray_precheck.commands.locate.search import LocationReport

# Options of the groups that mean nothing here: captured results are replayed on processor cores.
_WITHOUT = WITHOUT_DEVICE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Search the captures and return the exit code."""
    from ray_precheck.commands.locate.report import location_lines
    from ray_precheck.commands.locate.run import run_location

    config = LocationConfig(**given_values(options, LocationConfig))
    report = run_location(config, on_files=invocation.tell)
    for note in report.notes:
        print(f"warning: {note}", file=sys.stderr)
    if not report.completed:
        return invocation.stopped(report.stop_reason)
    lines = location_lines(
        report.places,
        report.dumps,
        report.table,
        report.errors or {},
        is_compared=report.is_compared,
        limit=_limit(config),
    )
    print("\n".join(lines))
    for path in report.graphs:
        print(f"graph: {path}")
    return location_exit_code(report)


def _limit(config: LocationConfig) -> float | None:
    """Return the limit of `--standard megengine`; None for another standard."""
    if config.standard != MEGENGINE:
        return None
    return MAX_ERR if config.max_err is None else config.max_err


def location_exit_code(report: "LocationReport") -> int:
    """Return the exit code of a search that came to its end."""
    if report.places:
        return IN_ERROR
    return PASSED if report.judged or report.compared else NOTHING_CHECKED


COMMANDS = (
    Command(
        names={"locate": "name the operator to blame, and what only passes its error on"},
        options=by_section(
            each for each in options_of(LocationConfig) if each.field not in _WITHOUT
        ),
        execute=_execute,
        epilog="exit codes: 0 no operator is to blame, 1 there is a culprit, or the runs were given different"
        " things, 2 wrong usage or input, 3 stopped, resumable, 4 nothing could be judged",
    ),
)
