"""The command compare: where two captures differ.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.options.commands import (
    COMPARE_EXIT_CODES,
    IN_ERROR,
    NOTHING_CHECKED,
    PASSED,
    STOPPED,
    Command,
    Invocation,
    given_values,
    note,
    worst_code,
)
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import (
    WITHOUT_DEVICE,
    OutFolderOptions,
)

if TYPE_CHECKING:
    from ray_precheck.commands.compare.report import ComparisonSummary

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
JSON = Option(
    ("--json",),
    "counts and the first differences of each pair of dumps",
    metavar="FILE",
    section=OutFolderOptions.section,
)
# Options of the groups that mean nothing here: a comparison runs on processor cores.
_WITHOUT = WITHOUT_DEVICE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Compare two captures and return the exit code."""
    if "numpy" not in sys.modules:
        # Numpy's products are made by each process for itself: threads of theirs would wait in busy loops,
        # and take from the forks that compare beside them (0.95 against 1.96 GB/s on two cores).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ray_precheck.commands.compare.report import (
        format_comparison_summary,
        write_comparison_json,
    )
    from ray_precheck.commands.compare.run import run_comparison
    from ray_precheck.store.output_file import require_writable

    if options.json is not None:
        require_writable("--json", Path(options.json))
    if options.mode != "auto":
        note(f"-m {options.mode} changes nothing: captures of PyTorch and MindSpore are compared")
    config = ComparisonConfig(**given_values(options, ComparisonConfig))
    reports = run_comparison(config, on_files=invocation.tell)
    is_many = len(reports.reports) > 1
    for report in reports.reports:
        print(format_comparison_summary(report.summary, report.label if is_many else ""))
    if not reports.completed:
        invocation.stopped(reports.stop_reason)
    if options.json is not None:
        found = ((report.label, report.summary) for report in reports.reports)
        write_comparison_json(Path(options.json), found)
    if not reports.completed:
        return STOPPED
    codes = [_code(report.summary, config.strict) for report in reports.reports]
    if config.strict and reports.without:
        codes.append(IN_ERROR)
    return worst_code(*codes)


def _code(summary: "ComparisonSummary", strict: bool) -> int:
    results = summary.results
    lone = results["unmatched"] or summary.lone_rows
    if results["error"] or (strict and (results["warning"] or lone)):
        return IN_ERROR
    return NOTHING_CHECKED if summary.compared_nothing else PASSED


COMMANDS = (
    Command(
        names={"compare": "compare two captures tensor by tensor: where do two runs differ?"},
        options=by_section(
            [
                *(each for each in options_of(ComparisonConfig) if each.field not in _WITHOUT),
                *(JSON, FUZZY, MODE),
            ]
        ),
        execute=_execute,
        epilog=COMPARE_EXIT_CODES,
    ),
)
