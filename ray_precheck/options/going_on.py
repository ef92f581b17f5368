"""The command that goes on with a stopped run.

Comes in: the arguments of the run. Goes out: a line for the shell. Called by the command itself,
and by the guardian, which outlives it.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ray_precheck.options.declared import options_of
from ray_precheck.options.files import ResumeOptions

# Left out of the command that resumes: the CSV is named anew, and rows that a resume has dropped or
# accepted once stay so (a second --retry would drop the rows that the first one has done again).
_RESUME_OPTIONS = tuple(name for each in options_of(ResumeOptions) for name in each.names)


def resume_command(given: Sequence[str], result: Path) -> str:
    """Return the command that goes on with a stopped run: the same, with `-csv_path`."""
    kept: list[str] = []
    leaves_out = False
    for argument in given:
        if argument.startswith("-"):
            leaves_out = _is_resume_option(argument.partition("=")[0])
        if not leaves_out:
            kept.append(argument)
    return shlex.join(["ray-precheck", *kept, "-csv_path", str(result)])


def _is_resume_option(option: str) -> bool:
    """Return whether an option, which may be abbreviated, is one of a resume."""
    return any(name.startswith(option) for name in _RESUME_OPTIONS) and option not in ("-", "--")
