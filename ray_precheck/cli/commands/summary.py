"""The command summary: the closing lines of a run, from its files.

Comes in: the options of the command. Goes out: its exit code, which is that of the run. Called through
the parser. Nothing is written but the files of --junit and --json: the run may still be running.
"""

import argparse
from pathlib import Path

from ray_precheck.cli.exit_codes import EXIT_CODES
from ray_precheck.cli.groups import add_debug
from ray_precheck.cli.invocation import Commands, Invocation
from ray_precheck.cli.outcome import (
    add_report_options,
    exit_code,
    require_report_files,
    write_report_files,
)
from ray_precheck.errors import ResumeError, UsageError


def add_commands(commands: Commands) -> None:
    """Add the parser of the command."""
    text = "print the closing lines of a run that has finished, stopped, or is still running"
    command = commands.add_parser("summary", help=text, description=text, epilog=EXIT_CODES)
    command.add_argument("result_csv", metavar="CSV", help="the result CSV of the run")
    add_report_options(command)
    add_debug(command, "show tracebacks")
    command.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Print the closing lines and return the exit code of the run.

    Raises:
        UsageError: the CSV is no result CSV or cannot be read, or a FILE cannot be written.
    """
    from ray_precheck.report.closing import format_summary
    from ray_precheck.report.state import state_of
    from ray_precheck.report.summary import summarise
    from ray_precheck.report.tables import require_result_csv
    from ray_precheck.store.resume import run_files

    result = Path(options.result_csv)
    try:
        files = run_files(result)
    except ResumeError as error:
        raise UsageError(str(error)) from None
    require_report_files(options)
    if result.exists() or not files.settings.exists():  # A run makes its CSV with the first row.
        require_result_csv(result)
    try:
        summary = summarise(files)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    state = state_of(summary)
    print(f"{result.name}: {state.sentence}")
    print(format_summary(summary))
    write_report_files(options, summary, state)
    return exit_code(summary, state)
