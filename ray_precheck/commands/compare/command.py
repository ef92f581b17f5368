"""The command compare: where two captures differ.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import os
import sys

from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.options.commands import (
    COMPARE_EXIT_CODES,
    IN_ERROR,
    STOPPED,
    Command,
    Invocation,
    given_values,
    note,
    worst_code,
)
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import JSON_FILE, PLOT, WITHOUT_DEVICE

_NOT_NEEDED = "options of msprobe that are accepted, and not needed"
FUZZY = Option(
    ("-fm", "--fuzzy_match"),
    "calls whose numbers are shifted are paired without it",
    takes=Takes.NOTHING,
    default=False,
    section=_NOT_NEEDED,
)
MODE = Option(
    ("-m", "--mode"),
    "msprobe's kind of data; captures of frameworks are `auto`",
    metavar="MODE",
    default="auto",
    section=_NOT_NEEDED,
)
# Options of the groups that mean nothing here: a comparison runs on processor cores.
_WITHOUT = WITHOUT_DEVICE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Compare two captures and return the exit code."""
    if "numpy" not in sys.modules:
        # Numpy's products are made by each process for itself: threads of theirs would wait in busy loops,
        # and take from the forks that compare beside them (0.95 against 1.96 GB/s on two cores).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ray_precheck.commands.compare.closing import comparison_code, format_comparison_summary
    from ray_precheck.commands.compare.report import view
    from ray_precheck.commands.compare.run import run_comparison
    from ray_precheck.running.plot import draw_view, require_rich
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    target = json_target(options.json)
    if options.plot:
        require_rich()
    if options.mode != "auto":
        note(f"-m {options.mode} changes nothing: captures of PyTorch and MindSpore are compared")
    config = ComparisonConfig(**given_values(options, ComparisonConfig))
    reports = run_comparison(config, on_files=invocation.tell)
    is_many = len(reports.reports) > 1
    with lines_beside(target):
        for report in reports.reports:
            print(format_comparison_summary(report.summary, report.label if is_many else ""))
        if not reports.completed:
            invocation.stopped(reports.stop_reason)
        places = [each.files.result.parent.relative_to(reports.folder) for each in reports.reports]
        found = [
            found_run(each.files.result, place.as_posix() if place.parts else "")
            for each, place in zip(reports.reports, places, strict=True)
        ]
        seen = view(found) if target is not None or options.plot else None
        if seen is not None and options.plot:
            draw_view(seen)
    if seen is not None and target is not None:
        write_views(target, [seen])
    if not reports.completed:
        return STOPPED
    codes = [
        comparison_code(each.summary.results, each.summary.lone_rows, strict=config.strict)
        for each in reports.reports
    ]
    if config.strict and reports.without:
        codes.append(IN_ERROR)
    return worst_code(*codes)


COMMANDS = (
    Command(
        names={"compare": "compare two captures tensor by tensor: where do two runs differ?"},
        options=by_section(
            [
                *(each for each in options_of(ComparisonConfig) if each.field not in _WITHOUT),
                *(FUZZY, MODE, JSON_FILE, PLOT),
            ]
        ),
        execute=_execute,
        epilog=COMPARE_EXIT_CODES,
    ),
)
