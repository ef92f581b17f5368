"""The command overflow_check: find where NaN and infinity were born.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import (
    STOPPED,
    UNUSABLE,
    Command,
    Invocation,
    code_of,
    given_values,
)
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import WITHOUT_DEVICE
from ray_precheck.schema.result import Verdict

if TYPE_CHECKING:
    from ray_precheck.commands.overflow.run import OverflowReport


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Search the dumps and return the exit code."""
    values = given_values(options, OverflowConfig)
    if options.dump is not None:
        if "dump" in values:
            raise UsageError(f"{options.dump} and -i {values['dump']} both name a dump; name one")
        values["dump"] = Path(options.dump)
    if "dump" not in values:
        raise UsageError("the dump is missing: ray-precheck overflow_check DUMP")
    config = OverflowConfig(**values)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.commands.overflow.report import overflow_lines
    from ray_precheck.commands.overflow.run import check_overflow
    from ray_precheck.foreign import printable

    report = check_overflow(config, on_files=invocation.tell)
    for missing in report.without:
        print(f"warning: {missing} has no dump.json and is left out", file=sys.stderr)
    print("\n".join(map(printable, overflow_lines(report))))
    if not report.completed:
        invocation.stopped(report.stop_reason)
    return search_exit_code(report)


def search_exit_code(report: "OverflowReport") -> int:
    """Return the exit code of a search: an overflow counts more than a dump that cannot be read."""
    if not report.completed:
        return STOPPED
    verdicts = {each.verdict for each in report.dumps}
    if Verdict.ERROR not in verdicts and any(each.records is None for each in report.dumps):
        return UNUSABLE
    return code_of(verdicts)


def _options() -> tuple[Option, ...]:
    own = [replace(each, required=False) for each in options_of(OverflowConfig)]
    own = [each for each in own if each.field not in WITHOUT_DEVICE]
    dump = Option(
        ("dump",),
        "a dump.json, or a folder: of a rank, of a step, or of all steps",
        takes=Takes.PERHAPS,
        metavar="DUMP",
    )
    return by_section([dump, *own])


COMMANDS = (
    Command(
        names={"overflow_check": "find the operator in which the first NaN or infinity was born"},
        options=_options(),
        execute=_execute,
        epilog="exit codes: 0 none was born, 1 one was born, or NaN or infinity came in from outside, 2"
        " wrong usage or input, 3 stopped, resumable, 4 the dumps have no statistics",
    ),
)
