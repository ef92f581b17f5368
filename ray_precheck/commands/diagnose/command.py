"""The command diagnose: compare, locate, overflow_check and the precheck of the suspects in one run.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse

from ray_precheck.commands.diagnose.options import DiagnosisConfig
from ray_precheck.options.commands import STOPPED, Command, Invocation, given_values
from ray_precheck.options.declared import by_section, options_of
from ray_precheck.options.shared import JSON_FILE


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Diagnose the captures and return the exit code."""
    from ray_precheck.commands.diagnose.findings import diagnosis_exit_code
    from ray_precheck.commands.diagnose.report import view
    from ray_precheck.commands.diagnose.run import run_diagnosis
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    config = DiagnosisConfig(**given_values(options, DiagnosisConfig))
    target = json_target(options.json)
    report = run_diagnosis(config, on_files=invocation.tell)
    with lines_beside(target):
        if report.completed:
            print(f"\n{report.text}  {report.page} (this page)")
        else:
            invocation.stopped(report.stop_reason)
    if target is not None:
        write_views(target, [view([found_run(report.page)])])
    return diagnosis_exit_code(report.findings) if report.completed else STOPPED


COMMANDS = (
    Command(
        names={"diagnose": "compare, locate, look for NaN and precheck the suspects, on one page"},
        options=by_section([*options_of(DiagnosisConfig), JSON_FILE]),
        execute=_execute,
        epilog="exit codes: 0 nothing is wrong, 1 an operator is to blame, a NaN or infinity is there, or the"
        " runs were given different things, 2 wrong usage or input, 3 stopped, resumable, 4 nothing could be"
        " checked",
    ),
)
