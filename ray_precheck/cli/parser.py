"""The parser of the whole command line.

Comes in: nothing. Goes out: the parser, whose result has `execute`: the function that runs the
command that was given. Called by `command_line`, and by tests.
"""

import argparse
from dataclasses import replace

from ray_precheck.commands.capture import command as capture
from ray_precheck.commands.compare import command as compare
from ray_precheck.commands.compare_results import command as compare_results
from ray_precheck.commands.diagnose import command as diagnose
from ray_precheck.commands.explain import command as explain
from ray_precheck.commands.locate import command as locate
from ray_precheck.commands.naive import command as naive
from ray_precheck.commands.overflow import command as overflow_check
from ray_precheck.commands.overflow import replay_command as run_overflow_check
from ray_precheck.commands.precheck import command as run_ut
from ray_precheck.commands.precheck import summary_command as summary
from ray_precheck.commands.repro import command as repro
from ray_precheck.options.arguments import VERSION, FrameworkName, add_options
from ray_precheck.options.declared import option_of
from ray_precheck.options.invocation import EXIT_CODES, SentenceParser
from ray_precheck.replay.config import RunConfig

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
