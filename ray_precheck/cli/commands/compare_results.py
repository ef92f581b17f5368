"""The command compare_results: the errors of one device beside those of another.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import time
from pathlib import Path

from ray_precheck.cli.exit_codes import COMPARE_EXIT_CODES, IN_ERROR, NOTHING_CHECKED, PASSED
from ray_precheck.cli.groups import add_debug
from ray_precheck.cli.invocation import Commands, Invocation


def add_commands(commands: Commands) -> None:
    """Add the parser of the command."""
    text = "compare the errors of one device with those of another, from two details files"
    command = commands.add_parser(
        "compare_results", help=text, description=text, epilog=COMPARE_EXIT_CODES
    )
    command.add_argument(
        "device_details", metavar="DETAILS", help="the details CSV of the device that is judged"
    )
    command.add_argument(
        "reference_details",
        metavar="REFERENCE",
        help="that of the device that it is compared with: the same dump, seed and --tested",
    )
    command.add_argument(
        "-o",
        "--out_path",
        default="./",
        metavar="FOLDER",
        help="folder of the comparison (default ./)",
    )
    add_debug(command, "show tracebacks")
    command.set_defaults(execute=_execute)
    _add_msprobe_command(commands)


def _add_msprobe_command(commands: Commands) -> None:
    """Add the same command as msprobe calls it, with its options."""
    text = "another name of compare_results, with the options of msprobe"
    command = commands.add_parser(
        "api_precision_compare", help=text, description=text, epilog=COMPARE_EXIT_CODES
    )
    for option, long, dest, whose in (
        ("-npu", "--npu_csv_path", "device_details", "NPU that is judged"),
        ("-gpu", "--gpu_csv_path", "reference_details", "GPU that it is compared with"),
    ):
        command.add_argument(
            option,
            long,
            dest=dest,
            required=True,
            metavar="FILE",
            help=f"accuracy_checking_details_{{timestamp}}.csv of the {whose}",
        )
    command.add_argument(
        "-o",
        "--out_path",
        default="./",
        metavar="FOLDER",
        help="folder of the comparison (default ./)",
    )
    add_debug(command, "show tracebacks")
    command.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Compare two result sets and return the exit code."""
    from ray_precheck.report.compare_results import compare_results
    from ray_precheck.report.compare_text import format_comparison
    from ray_precheck.schema.result import Verdict

    stamp = time.strftime("%Y%m%d%H%M%S")
    paths = Path(options.device_details), Path(options.reference_details)
    comparison = compare_results(*paths, Path(options.out_path), stamp)
    print(format_comparison(comparison))
    if comparison.count(Verdict.ERROR):
        return IN_ERROR
    return PASSED if comparison.count(Verdict.PASS) else NOTHING_CHECKED
