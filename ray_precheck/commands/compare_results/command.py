"""The command compare_results: the errors of one device beside those of another.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import time
from pathlib import Path

from ray_precheck.options.commands import (
    COMPARE_EXIT_CODES,
    DEBUG,
    OUT_FOLDER,
    Command,
    Invocation,
    code_of,
)
from ray_precheck.options.declared import Option
from ray_precheck.options.shared import JSON_FILE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run the command with its own arguments."""
    return _compare(Path(options.device_details), Path(options.reference_details), options)


def _execute_as_msprobe(options: argparse.Namespace, invocation: Invocation) -> int:
    """Run the command with the options of msprobe."""
    return _compare(Path(options.npu_csv_path), Path(options.gpu_csv_path), options)


def _compare(device: Path, reference: Path, options: argparse.Namespace) -> int:
    """Compare two result sets and return the exit code."""
    from ray_precheck.commands.compare_results.report import view
    from ray_precheck.commands.compare_results.run import compare_results, format_comparison
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import FoundRun

    target = json_target(options.json)
    stamp = time.strftime("%Y%m%d%H%M%S")
    comparison = compare_results(device, reference, Path(options.out_path), stamp)
    with lines_beside(target):
        print(format_comparison(comparison))
    if target is not None:
        write_views(target, [view([FoundRun(comparison.path, stamp)])])
    return code_of({row.verdict for row in comparison.rows})


COMMANDS = (
    Command(
        names={
            "compare_results": "compare the errors of one device with those of another, from two"
            " details files"
        },
        options=(
            Option(
                ("device_details",),
                "the details CSV of the device that is judged",
                metavar="DETAILS",
            ),
            Option(
                ("reference_details",),
                "that of the device that it is compared with: the same dump, seed and --tested",
                metavar="REFERENCE",
            ),
            OUT_FOLDER,
            JSON_FILE,
            DEBUG,
        ),
        execute=_execute,
        epilog=COMPARE_EXIT_CODES,
    ),
    Command(
        names={
            "api_precision_compare": "another name of compare_results, with the options of msprobe"
        },
        options=(
            Option(
                ("-npu", "--npu_csv_path"),
                "accuracy_checking_details_{timestamp}.csv of the NPU that is judged",
                metavar="FILE",
                required=True,
            ),
            Option(
                ("-gpu", "--gpu_csv_path"),
                "accuracy_checking_details_{timestamp}.csv of the GPU that it is compared with",
                metavar="FILE",
                required=True,
            ),
            OUT_FOLDER,
            JSON_FILE,
            DEBUG,
        ),
        execute=_execute_as_msprobe,
        epilog=COMPARE_EXIT_CODES,
    ),
)
