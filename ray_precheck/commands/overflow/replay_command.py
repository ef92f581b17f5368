"""The command run_overflow_check: replay calls whose captured results are not finite on the CPU.

Comes in: the options of the command. Goes out: its exit code. Called through the parser. The command has the
name and the options of msprobe 8.
"""

import argparse
from dataclasses import replace

from ray_precheck.commands.precheck.command import JIT_COMPILE
from ray_precheck.options.commands import Command, Invocation, given_values, note
from ray_precheck.options.declared import Option, options_of
from ray_precheck.options.shared import JSON_FILE
from ray_precheck.replay.config import RunConfig

_FIELDS = {
    "dump",
    "framework",
    "out",
    "devices",
    "address",
    "shared_fs",
    "timeout_s",
    "max_memory_gib",
    "seed",
    "resume_csv",
    "force",
    "debug",
}


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Replay the calls and return the exit code."""
    if options.jit_compile:
        note("-j changes nothing: operators run as the framework compiles them by itself")
    config = RunConfig(**given_values(options, RunConfig))
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.commands.overflow.replay import replay_exit_code, replay_overflows
    from ray_precheck.commands.overflow.replay_report import finite_view, replay_view
    from ray_precheck.running.view_data import json_target, lines_beside, write_views
    from ray_precheck.running.views import found_run

    target = json_target(options.json)
    report = replay_overflows(config, on_files=invocation.tell)
    files = report.files
    with lines_beside(target):
        for row in report.rows:
            print(f"{row.name}: {row.message}")
        if files is None:
            print(f"The captured results of all {report.calls} calls are finite")
        else:
            print(f"{len(report.rows)} of {report.calls} calls have results that are not finite")
            print(f"Rows: {files.result}")
        if not report.completed:
            invocation.stopped(report.stop_reason)
    if target is not None:
        seen = (
            finite_view(report.calls) if files is None else replay_view([found_run(files.result)])
        )
        write_views(target, [seen])
    return replay_exit_code(report)


def _options() -> tuple[Option, ...]:
    own = [each for each in options_of(RunConfig) if each.field in _FIELDS]
    own = [
        replace(each, names=("--framework",)) if each.field == "framework" else each for each in own
    ]
    return (*own, JIT_COMPILE, JSON_FILE)


COMMANDS = (
    Command(
        names={
            "run_overflow_check": "replay calls whose captured results are not finite on the CPU"
        },
        options=_options(),
        execute=_execute,
        epilog="exit codes: 0 the CPU's results are not finite either, or all captured ones are finite, 1"
        " some call is an abnormal overflow, 2 wrong usage or input, 3 stopped, resumable, 4 nothing could"
        " be replayed",
        description="Calls with NaN or infinity in their captured results are run on the CPU: `normal"
        " overflow` where its results are not finite either, else `abnormal overflow` (msprobe 8)",
    ),
)
