"""The command export: one call of a dump as one file that runs with the framework and NumPy alone.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from ray_precheck.options.commands import DEBUG, PASSED, Command, Invocation, given_values
from ray_precheck.options.declared import Option, option_of
from ray_precheck.replay.config import RunConfig

_FIELDS = ("dump", "framework", "seed", "tested", "distribution", "bench_modules")


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Write the file, and say what is in it and how it is run; return the exit code."""
    from ray_precheck.commands.export.case import export_case

    config = RunConfig(**given_values(options, RunConfig))
    config.validate()
    print(export_case(options.call, config, Path(options.case)))
    return PASSED


_TEXT = "write one call of a dump, its results and a script into one file that anybody can run"
COMMANDS = (
    Command(
        names={"export": _TEXT},
        options=(
            Option(
                ("call",),
                "the call: its name, or a key of the dump (Functional.softmax.0.forward)",
                metavar="CALL",
            ),
            *(replace(option_of(RunConfig, name)) for name in _FIELDS),
            Option(
                ("--case",),
                "the file that is written, a zip archive: `python FILE` runs the call",
                metavar="FILE",
                required=True,
                section="where the results go",
            ),
            DEBUG,
        ),
        execute=_execute,
        epilog="exit codes: 0 written, 2 wrong usage or input, or the call cannot be checked",
        description=f"{_TEXT}. It holds the inputs, the results of the capture (or of this machine, where the"
        " dump has none), those of the float64 reference, the arguments, the versions, and a script that runs"
        " the call and compares, for which the framework and NumPy suffice",
    ),
)
