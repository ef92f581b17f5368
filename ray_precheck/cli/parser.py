"""The parser of the whole command line.

Comes in: nothing. Goes out: the parser, whose result has `execute`: the function that runs the
command that was given. Called by `command_line`, and by tests.
"""

import argparse

from ray_precheck.cli.actions import FrameworkName
from ray_precheck.cli.commands import compare_results, repro, run_ut, summary
from ray_precheck.cli.exit_codes import EXIT_CODES
from ray_precheck.cli.groups import add_version, choices
from ray_precheck.cli.invocation import SentenceParser
from ray_precheck.config import FRAMEWORKS

# In the order of --help.
_COMMAND_MODULES = (run_ut, summary, repro, compare_results)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = SentenceParser(
        prog="ray-precheck",
        description="Find the operators of a training step that are numerically wrong on a device.",
        epilog=EXIT_CODES,
    )
    parser.add_argument(
        "-f",
        "--framework",
        default="",
        action=FrameworkName,
        metavar="NAME",
        help=choices(FRAMEWORKS, "as the dump says"),
    )
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _COMMAND_MODULES:
        module.add_commands(commands)
    return parser
