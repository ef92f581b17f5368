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
    STOPPED,
    UNUSABLE,
    Command,
    Invocation,
    given_values,
)
from ray_precheck.options.declared import by_section, options_of
from ray_precheck.options.shared import JSON_FILE, MAX_ERR, MEGENGINE, PLOT, WITHOUT_DEVICE

if TYPE_CHECKING:
    from ray_precheck.commands.locate.search import LocationReport

# Options of the groups that mean nothing here: captured results are replayed on processor cores.
_WITHOUT = WITHOUT_DEVICE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Search the captures and return the exit code."""
    from ray_precheck.commands.locate.report import view
    from ray_precheck.commands.locate.run import run_location
    from ray_precheck.commands.locate.table import location_lines
    from ray_precheck.commands.ranks.closing import ranks_lines
    from ray_precheck.commands.ranks.report import view as view_of_ranks
    from ray_precheck.foreign import printable
    from ray_precheck.running.plot import draw_view, require_rich
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    target = json_target(options.json)
    if options.plot:
        require_rich()
    config = LocationConfig(**given_values(options, LocationConfig))
    report = run_location(config, on_files=invocation.tell)
    for note in report.notes:
        print(f"warning: {note}", file=sys.stderr)
    with lines_beside(target):
        if report.ranks is not None and report.ranks.completed:
            print("\n".join(map(printable, ranks_lines(report.ranks))))
        if not report.completed:
            invocation.stopped(report.stop_reason)
        elif report.dumps or report.ranks is None:
            lines = location_lines(
                report.places,
                report.dumps,
                report.table,
                report.errors or {},
                is_compared=report.is_compared,
                unread=report.unread,
                limit=_limit(config),
            )
            print("\n".join(lines))
            for path in report.graphs:
                print(f"graph: {path}")
        seen = []
        if target is not None or options.plot:
            seen.append(view([found_run(report.table)]))
            if report.ranks is not None:
                seen.append(view_of_ranks([found_run(report.ranks.files.details)]))
        if options.plot:
            for each in seen:
                draw_view(each)
    if target is not None:
        write_views(target, seen)
    return location_exit_code(report) if report.completed else STOPPED


def _limit(config: LocationConfig) -> float | None:
    """Return the limit of `--standard megengine`; None for another standard."""
    if config.standard != MEGENGINE:
        return None
    return MAX_ERR if config.max_err is None else config.max_err


def location_exit_code(report: "LocationReport") -> int:
    """Return the exit code of a search that came to its end."""
    from ray_precheck.commands.ranks.closing import ranks_exit_code

    of_ranks = NOTHING_CHECKED if report.ranks is None else ranks_exit_code(report.ranks)
    if report.places or of_ranks == IN_ERROR:
        return IN_ERROR
    if report.unread:
        return UNUSABLE
    return PASSED if report.judged or report.compared else of_ranks


COMMANDS = (
    Command(
        names={"locate": "name the operator to blame, and what only passes its error on"},
        options=by_section(
            [
                *(each for each in options_of(LocationConfig) if each.field not in _WITHOUT),
                *(JSON_FILE, PLOT),
            ]
        ),
        execute=_execute,
        epilog="exit codes: 0 no operator is to blame, 1 there is a culprit, or the runs were given different"
        " things, 2 wrong usage or input, or a dump that cannot be read, 3 stopped, resumable, 4 nothing"
        " could be judged",
    ),
)
