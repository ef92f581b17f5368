"""The end of a command that checks or sums up: its closing lines, the files for CI, its exit code.

Comes in: a `Summary` and how far the run is. Goes out: text on the standard output, the files of
--junit and --json, and an exit code. Called by `run_ut` and `summary`.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.errors import UsageError
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.options.declared import Option

if TYPE_CHECKING:
    from ray_precheck.commands.precheck.closing import RunState
    from ray_precheck.commands.precheck.summary import Summary


_SECTION = "files for CI, written at the end or when the run stops"
REPORT_FILES = (
    Option(
        ("--junit",),
        "JUnit XML: a test case for each call, the environment",
        metavar="FILE",
        section=_SECTION,
    ),
    Option(
        ("--json",),
        "counts, reasons, worst outputs, environment, verdicts",
        metavar="FILE",
        section=_SECTION,
    ),
)


def require_report_files(options: argparse.Namespace) -> None:
    """Raise if the files of --junit and --json could not be written at the end of the run.

    Raises:
        UsageError: one cannot, or both are the same.
    """
    from ray_precheck.store.output_file import require_writable

    given = {"--junit": options.junit, "--json": options.json}
    paths = {option: Path(path) for option, path in given.items() if path is not None}
    for option, path in paths.items():
        require_writable(option, path)
    if len(paths) == 2 and len({path.resolve() for path in paths.values()}) == 1:
        raise UsageError(f"--junit and --json both name {options.json}; name two files")


def write_report_files(
    options: argparse.Namespace, junit: Iterable[bytes], json: Iterable[bytes]
) -> None:
    """Write the files of --junit and --json, those that were asked for, of their lines.

    Raises:
        UsageError: one cannot be written.
    """
    from ray_precheck.store.output_file import write_report

    for option, path, lines in (("--junit", options.junit, junit), ("--json", options.json, json)):
        if path is not None:
            write_report(option, Path(path), lines)


def exit_code(summary: "Summary", state: "RunState") -> int:
    """Return the exit code of a run; the checked calls decide, if there are any."""
    from ray_precheck.commands.precheck.closing import RunPhase

    if state.progress is not RunPhase.FINISHED:
        return STOPPED
    if summary.errors:
        return IN_ERROR
    cut_short = summary.settings is not None and summary.settings.cut_short
    return NOTHING_CHECKED if summary.checked_nothing or cut_short else PASSED
