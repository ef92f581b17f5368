"""The end of a command that checks or sums up: its closing lines, the files for CI, its exit code.

Comes in: a `Summary` and how far the run is. Goes out: the files of --junit and --json, what --plot draws,
and an exit code. Called by `run_ut` and `summary`.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.errors import UsageError
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.options.declared import Option
from ray_precheck.options.shared import JSON_FILE

if TYPE_CHECKING:
    from ray_precheck.commands.precheck.closing import RunState
    from ray_precheck.commands.precheck.summary import Summary
    from ray_precheck.schema.view import View


JUNIT_FILE = Option(
    ("--junit",),
    "JUnit XML for CI: a test case for each call, the environment; also when the run stops",
    metavar="FILE",
    section=JSON_FILE.section,
)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a command gives beside its closing lines, None and False where it was not asked for."""

    junit: Path | None
    json: Path | None
    plot: bool

    def write(self, junit: Iterable[bytes], view: Callable[[], "View"]) -> None:
        """Write the files, and draw; `view` is made where it is wanted.

        Raises:
            UsageError: a file cannot be written.
        """
        from ray_precheck.running.plot import draw_view
        from ray_precheck.running.view_data import lines_beside, write_views
        from ray_precheck.store.output_file import write_report

        if self.junit is not None:
            write_report("--junit", self.junit, junit)
        if self.json is None and not self.plot:
            return
        seen = view()
        if self.plot:
            with lines_beside(self.json):
                draw_view(seen)
        if self.json is not None:
            write_views(self.json, [seen])


def outputs_of(options: argparse.Namespace) -> Outputs:
    """Return what options ask for beside the closing lines, before the run begins.

    Raises:
        UsageError: a file could not be written, two are the same, or the package that draws is missing.
    """
    from ray_precheck.running.plot import require_rich
    from ray_precheck.running.view_data import json_target
    from ray_precheck.store.output_file import require_writable

    junit = None if options.junit is None else Path(options.junit)
    if junit is not None:
        require_writable("--junit", junit)
    json = json_target(options.json)
    if junit is not None and json is not None and junit.resolve() == json.resolve():
        raise UsageError(f"--junit and --json both name {options.json}; name two files")
    if options.plot:
        require_rich()
    return Outputs(junit, json, options.plot)


def exit_code(summary: "Summary", state: "RunState") -> int:
    """Return the exit code of a run; the checked calls decide, if there are any."""
    from ray_precheck.commands.precheck.closing import RunPhase

    if state.progress is not RunPhase.FINISHED:
        return STOPPED
    if summary.errors:
        return IN_ERROR
    cut_short = summary.settings is not None and summary.settings.cut_short
    return NOTHING_CHECKED if summary.checked_nothing or cut_short else PASSED
