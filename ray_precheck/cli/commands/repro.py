"""The command repro: a Python script that shows the failure of one saved API.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from pathlib import Path

from ray_precheck.cli.exit_codes import PASSED
from ray_precheck.cli.groups import add_debug
from ray_precheck.cli.invocation import Commands, Invocation


def add_commands(commands: Commands) -> None:
    """Add the parser of the command."""
    text = "print a Python script that shows the failure of an API that -save_error_data saved"
    command = commands.add_parser(
        "repro",
        help=text,
        description=f"{text}; it needs the framework and NumPy alone, and the saved files",
        epilog="exit codes: 0 printed, 2 wrong usage or input",
    )
    command.add_argument(
        "saved", metavar="JSON", help="error_data/{timestamp}/{API name}.json of the results"
    )
    add_debug(command, "show tracebacks")
    command.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Print the script and return the exit code."""
    from ray_precheck.report.repro.script import repro_script

    print(repro_script(Path(options.saved)), end="")
    return PASSED
