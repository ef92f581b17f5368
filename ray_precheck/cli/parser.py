"""The parser of the whole command line.

Comes in: nothing. Goes out: the parser, whose result has `execute`: the function that runs the
command that was given. Called by `command_line`, and by tests.
"""

import argparse
from dataclasses import replace

from ray_precheck.cli.actions import FrameworkName
from ray_precheck.cli.arguments import VERSION, add_options
from ray_precheck.cli.commands import (
    capture,
    compare,
    compare_results,
    diagnose,
    explain,
    locate,
    naive,
    overflow_check,
    repro,
    run_overflow_check,
    run_ut,
    summary,
)
from ray_precheck.cli.exit_codes import EXIT_CODES
from ray_precheck.cli.invocation import SentenceParser
from ray_precheck.config import RunConfig
from ray_precheck.options.declared import option_of

# In the order of --help.
COMMANDS = (
    *capture.COMMANDS,
    *run_ut.COMMANDS,
    *overflow_check.COMMANDS,
    *run_overflow_check.COMMANDS,
    *naive.COMMANDS,
    *summary.COMMANDS,
    *explain.COMMANDS,
    *repro.COMMANDS,
    *compare.COMMANDS,
    *locate.COMMANDS,
    *diagnose.COMMANDS,
    *compare_results.COMMANDS,
)
_BEFORE_THE_COMMAND = (
    replace(option_of(RunConfig, "framework"), action=FrameworkName, section=""),
    replace(VERSION, section=""),
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = SentenceParser(
        prog="ray-precheck",
        description="Find the operators of a training step that are numerically wrong on a device.",
        epilog=EXIT_CODES,
    )
    add_options(parser, _BEFORE_THE_COMMAND)
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        for name, text in command.names.items():
            own = parsers.add_parser(
                name,
                help=text,
                description=command.description or text,
                epilog=command.epilog,
            )
            add_options(own, command.options)
            own.set_defaults(execute=command.execute)
    return parser
