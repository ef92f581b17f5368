"""The command line: msprobe's, and long options of our own.

Comes in: arguments. Goes out: an exit code (`options.commands`). `command_line` knows all commands
and runs one; each has a folder in `commands`. Options are declared with the configurations
(`ray_precheck.options.shared`); `options.commands` makes a parser of them.
"""

from ray_precheck.cli.command_line import COMMANDS, build_parser, entry, main
from ray_precheck.commands.precheck.command import run_config
from ray_precheck.options.commands import (
    IN_ERROR,
    NOTHING_CHECKED,
    PASSED,
    STOPPED,
    UNUSABLE,
    resume_command,
)

__all__ = [
    "COMMANDS",
    "IN_ERROR",
    "NOTHING_CHECKED",
    "PASSED",
    "STOPPED",
    "UNUSABLE",
    "build_parser",
    "entry",
    "main",
    "resume_command",
    "run_config",
]
