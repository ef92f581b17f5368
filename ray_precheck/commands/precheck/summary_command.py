"""The command summary: the closing lines of a run, from its files.

Comes in: the options of the command. Goes out: its exit code, which is that of the run. Called through
the parser. Nothing is written but the files of --junit and --json: the run may still be running.
"""

import argparse
from pathlib import Path

from ray_precheck.commands.precheck.outcome import (
    JUNIT_FILE,
    exit_code,
    outputs_of,
)
from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.options.commands import DEBUG, EXIT_CODES, Command, Invocation
from ray_precheck.options.declared import Option
from ray_precheck.options.shared import JSON_FILE, PLOT


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Print the closing lines and return the exit code of the run.

    Raises:
        UsageError: the CSV is no result CSV or cannot be read, or a FILE cannot be written.
    """
    from ray_precheck.commands.precheck.closing import format_summary, state_of
    from ray_precheck.commands.precheck.junit import junit_lines
    from ray_precheck.commands.precheck.report import view
    from ray_precheck.commands.precheck.summary import summarise
    from ray_precheck.running.view_data import lines_beside
    from ray_precheck.running.views import found_run
    from ray_precheck.store.results import require_result_csv
    from ray_precheck.store.tables import run_files

    result = Path(options.result_csv)
    try:
        files = run_files(result)
    except ResumeError as error:
        raise UsageError(str(error)) from None
    outputs = outputs_of(options)
    if result.exists() or not files.settings.exists():  # A run makes its CSV with the first row.
        require_result_csv(result)
    try:
        summary = summarise(files)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    state = state_of(summary)
    with lines_beside(outputs.json):
        for cut in summary.settings.cut_short if summary.settings is not None else ():
            print(f"warning: {cut}.")
        print(f"{result.name}: {state.sentence}")
        print(format_summary(summary))
    outputs.write(junit_lines(summary, state), lambda: view([found_run(result)]))
    return exit_code(summary, state)


COMMANDS = (
    Command(
        names={
            "summary": "print the closing lines of a run that has finished, stopped, or is still"
            " running"
        },
        options=(
            Option(("result_csv",), "the result CSV of the run", metavar="CSV"),
            JUNIT_FILE,
            JSON_FILE,
            PLOT,
            DEBUG,
        ),
        execute=_execute,
        epilog=EXIT_CODES,
    ),
)
