"""The command repro: a Python script that shows the failure of one saved API.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from pathlib import Path

from ray_precheck.options.commands import DEBUG, PASSED, Command, Invocation
from ray_precheck.options.declared import Option


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Print the script and return the exit code."""
    from ray_precheck.commands.repro.script import repro_script

    print(repro_script(Path(options.saved)), end="")
    return PASSED


_TEXT = "print a Python script that shows the failure of an API that -save_error_data saved"
COMMANDS = (
    Command(
        names={"repro": _TEXT},
        options=(
            Option(
                ("saved",),
                "error_data/{timestamp}/{API name}.json of the results",
                metavar="JSON",
            ),
            DEBUG,
        ),
        execute=_execute,
        epilog="exit codes: 0 printed, 2 wrong usage or input",
        description=f"{_TEXT}; it needs the framework and NumPy alone, and the saved files",
    ),
)
