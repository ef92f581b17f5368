"""The command ranks: check the ranks of one run against each other.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ray_precheck.commands.ranks.options import RanksConfig
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import Command, Invocation, given_values
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import JSON_FILE, PLOT, WITHOUT_DEVICE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Check the ranks and return the exit code."""
    values = given_values(options, RanksConfig)
    if options.dump is not None:
        if "dump" in values:
            raise UsageError(f"{options.dump} and -i {values['dump']} both name a dump; name one")
        values["dump"] = Path(options.dump)
    if "dump" not in values:
        raise UsageError("the dump is missing: ray-precheck ranks DUMP")
    config = RanksConfig(**values)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.commands.ranks.closing import ranks_exit_code, ranks_lines
    from ray_precheck.commands.ranks.report import view
    from ray_precheck.commands.ranks.run import run_rank_checks
    from ray_precheck.foreign import printable
    from ray_precheck.running.plot import draw_view, require_rich
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    target = json_target(options.json)
    if options.plot:
        require_rich()
    report = run_rank_checks(config, on_files=invocation.tell)
    for missing in report.without:
        print(f"warning: {missing} has no dump.json and is left out", file=sys.stderr)
    with lines_beside(target):
        print("\n".join(map(printable, ranks_lines(report))))
        if not report.completed:
            invocation.stopped(report.stop_reason)
        seen = view([found_run(report.files.details)]) if target or options.plot else None
        if seen is not None and options.plot:
            draw_view(seen)
    if seen is not None and target is not None:
        write_views(target, [seen])
    return ranks_exit_code(report)


def _options() -> tuple[Option, ...]:
    own = [replace(each, required=False) for each in options_of(RanksConfig)]
    own = [each for each in own if each.field not in WITHOUT_DEVICE]
    dump = Option(
        ("dump",),
        "the folder of a capture of several ranks: of a step, or of all steps",
        takes=Takes.PERHAPS,
        metavar="DUMP",
    )
    return by_section([dump, *own, JSON_FILE, PLOT])


COMMANDS = (
    Command(
        names={"ranks": "check the ranks of one run against each other, without a golden run"},
        options=_options(),
        execute=_execute,
        epilog="exit codes: 0 nothing that was checked is wrong, 1 something is, 2 wrong usage or input,"
        " 3 stopped, resumable, 4 nothing could be checked: one rank, or no group",
    ),
)
