"""The command diagnose: compare, locate, overflow_check and the precheck of the suspects in one run.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from typing import TYPE_CHECKING

from ray_precheck.commands.diagnose.options import DiagnosisConfig
from ray_precheck.options.commands import (
    IN_ERROR,
    NOTHING_CHECKED,
    PASSED,
    Command,
    Invocation,
    given_values,
)
from ray_precheck.options.declared import by_section, options_of

if TYPE_CHECKING:
    from ray_precheck.commands.diagnose.findings import Findings


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Diagnose the captures and return the exit code."""
    from ray_precheck.commands.diagnose.run import run_diagnosis

    config = DiagnosisConfig(**given_values(options, DiagnosisConfig))
    report = run_diagnosis(config, on_files=invocation.tell)
    if not report.completed:
        return invocation.stopped(report.stop_reason)
    print(f"\n{report.text}  {report.page} (this page)")
    return diagnosis_exit_code(report.findings)


def diagnosis_exit_code(found: "Findings") -> int:
    """Return the exit code of a diagnosis that came to its end.

    What the comparison calls an error counts where nothing could look for the operator to blame: else that
    search has told whether an operator is, or the errors have grown of rounding.
    """
    from ray_precheck.schema.result import Verdict

    compared = found.comparison.reports if found.comparison is not None else ()
    overflow = [each.verdict for each in found.overflow.dumps] if found.overflow is not None else []
    checked = [check.report.summary for check in found.checks]
    location = found.location
    if (
        (location is not None and location.places)
        or Verdict.ERROR in overflow
        or any(summary.errors for summary in checked)
        or (location is None and any(report.summary.results["error"] for report in compared))
    ):
        return IN_ERROR
    is_checked = (
        (location is not None and (location.judged or location.compared))
        or Verdict.PASS in overflow
        or any(not summary.checked_nothing for summary in checked)
        or any(not report.summary.compared_nothing for report in compared)
    )
    return PASSED if is_checked else NOTHING_CHECKED


COMMANDS = (
    Command(
        names={"diagnose": "compare, locate, look for NaN and precheck the suspects, on one page"},
        options=by_section(options_of(DiagnosisConfig)),
        execute=_execute,
        epilog="exit codes: 0 nothing is wrong, 1 an operator is to blame, a NaN or infinity is there, or the"
        " runs were given different things, 2 wrong usage or input, 3 stopped, resumable, 4 nothing could be"
        " checked",
    ),
)
