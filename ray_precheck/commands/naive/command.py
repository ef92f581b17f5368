"""The command naive: run the calls of a dump under default kernels and under plain ones.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from pathlib import Path

from ray_precheck.commands.naive.options import NaiveConfig
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import Command, Invocation, given_values
from ray_precheck.options.declared import Option, Takes, by_section, options_of
from ray_precheck.options.shared import JSON_FILE

# Options of a precheck that mean nothing here: both sides are run on the device, judged by `auto`, and
# benched where they ran.
_WITHOUT = {"dump", "standard", "tested", "save_error_data", "bench_workers"}


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Contrast the calls and return the exit code."""
    if options.dump is None:
        raise UsageError("the dump is missing: ray-precheck naive DUMP")
    values = given_values(options, NaiveConfig)
    config = NaiveConfig(dump=Path(options.dump), **values)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.replay.loading import loaded_early
    from ray_precheck.running.view_data import json_target, lines_beside, write_views

    target = json_target(options.json)
    with loaded_early(config, config.framework, config.dump):
        from ray_precheck.commands.naive.report import naive_exit_code, naive_lines, view
        from ray_precheck.commands.naive.run import contrast_kernels
        from ray_precheck.running.views import found_run

        report = contrast_kernels(config, on_files=invocation.tell)
    with lines_beside(target):
        print("\n".join(naive_lines(report)))
        if not report.completed:
            invocation.stopped(report.stop_reason)
    if target is not None:
        write_views(target, [view([found_run(report.files.result)])])
    return naive_exit_code(report)


def _options() -> tuple[Option, ...]:
    own = [each for each in options_of(NaiveConfig) if each.field not in _WITHOUT]
    dump = Option(
        ("dump",),
        "a dump.json, the log of a capture that was cut off, or the folder of one of them",
        takes=Takes.PERHAPS,
        metavar="DUMP",
    )
    return by_section([dump, *own, JSON_FILE])


COMMANDS = (
    Command(
        names={
            "naive": "run calls under default and plain kernels, and name the switch that differs"
        },
        options=_options(),
        execute=_execute,
        epilog="exit codes: 0 nothing differs by more than rounding, 1 a call differs or is not reproducible,"
        " 2 wrong usage or input, 3 stopped, resumable, 4 nothing could be run",
        description="Calls of a dump are run under the default kernels of this machine and under the slow,"
        " plain ones, several times each; where the results differ by more than rounding, switches are turned"
        " one at a time",
    ),
)
