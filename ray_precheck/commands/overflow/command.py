"""The command overflow_check: find where NaN and infinity were born.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.running.dumps_command import DumpsParts, dumps_command


def _load() -> DumpsParts:
    from ray_precheck.commands.overflow.closing import overflow_lines, search_exit_code
    from ray_precheck.commands.overflow.report import view
    from ray_precheck.commands.overflow.run import check_overflow

    return DumpsParts(check_overflow, overflow_lines, view, search_exit_code)


COMMANDS = (
    dumps_command(
        "overflow_check",
        "find the operator in which the first NaN or infinity was born",
        OverflowConfig,
        "a dump.json, or a folder: of a rank, of a step, or of all steps",
        "exit codes: 0 none was born, 1 one was born, or NaN or infinity came in from outside, 2"
        " wrong usage or input, 3 stopped, resumable, 4 the dumps have no statistics",
        _load,
    ),
)
