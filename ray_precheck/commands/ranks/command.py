"""The command ranks: check the ranks of one run against each other.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

from ray_precheck.commands.ranks.options import RanksConfig
from ray_precheck.running.dumps_command import DumpsParts, dumps_command


def _load() -> DumpsParts:
    from ray_precheck.commands.ranks.closing import ranks_exit_code, ranks_lines
    from ray_precheck.commands.ranks.report import view
    from ray_precheck.commands.ranks.run import run_rank_checks

    return DumpsParts(run_rank_checks, ranks_lines, view, ranks_exit_code)


COMMANDS = (
    dumps_command(
        "ranks",
        "check the ranks of one run against each other, without a golden run",
        RanksConfig,
        "the folder of a capture of several ranks: of a step, or of all steps",
        "exit codes: 0 nothing that was checked is wrong, 1 something is, 2 wrong usage or input,"
        " 3 stopped, resumable, 4 nothing could be checked: one rank, or no group",
        _load,
    ),
)
