"""The commands run_ut, multi_run_ut and their other names: check the APIs of a dump.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.cli.config_file import CheckerConfig, read_checker_config
from ray_precheck.cli.exit_codes import (
    EXIT_CODES,
    NOTHING_CHECKED,
    STOPPED,
    UNUSABLE,
    worst_of,
)
from ray_precheck.cli.going_on import resume_command
from ray_precheck.cli.groups import (
    add_check_options,
    add_debug,
    add_limit_options,
    add_list,
    add_msprobe_options,
    add_place_options,
    add_resume_options,
    add_selection_options,
    add_version,
)
from ray_precheck.cli.invocation import Commands, Invocation, note
from ray_precheck.cli.list_calls import print_calls
from ray_precheck.cli.outcome import (
    add_report_options,
    exit_code,
    require_report_files,
    write_ranks_files,
    write_report_files,
)
from ray_precheck.config import Number, RunConfig
from ray_precheck.dump.folders import FoundDumps, find_dumps
from ray_precheck.errors import UsageError

if TYPE_CHECKING:
    from ray_precheck.ranks import RanksReport
    from ray_precheck.report.ranks_summary import RankSummary

COMMANDS = {
    "run_ut": "check the APIs of a dump",
    "multi_run_ut": "the same; msprobe's name for several devices",
    "acc_check": "another name of run_ut (msprobe 26)",
    "multi_acc_check": "another name of multi_run_ut (msprobe 26)",
}

# As msprobe has it.
NUM_SPLITS = Number("-n", "num_splits", "the count of splits", least=1, most=64)


def add_commands(commands: Commands) -> None:
    """Add the parsers of the commands."""
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
        add_msprobe_options(command)
        add_place_options(command)
        add_selection_options(command)
        add_check_options(command)
        add_limit_options(command)
        add_resume_options(command)
        add_report_options(command)
        add_list(command)
        add_version(command)
        add_debug(command, "show tracebacks and what Ray prints")
        command.set_defaults(execute=_execute)


def _execute(options: argparse.Namespace, invocation: Invocation) -> int:
    """Check the APIs of a dump and return the exit code."""
    config = run_config(options)
    require_report_files(options)
    _say_what_is_not_needed(options)
    found = find_dumps(config.dump)
    if options.lists:
        return print_calls(config, found)
    if found.is_many:
        return _check_ranks(options, config, found, invocation)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.report.closing import format_summary
    from ray_precheck.report.state import state_of_end
    from ray_precheck.session import run

    report = run(config, on_files=lambda files: invocation.announce(str(files.result)))
    print(format_summary(report.summary))
    if not report.completed:
        _say_how_to_go_on(report.stop_reason, invocation, report.files.result)
    state = state_of_end(report.summary, completed=report.completed, reason=report.stop_reason)
    write_report_files(options, report.summary, state)
    return exit_code(report.summary, state)


def _check_ranks(
    options: argparse.Namespace, config: RunConfig, found: FoundDumps, invocation: Invocation
) -> int:
    """Check the dumps of several ranks or steps and return the exit code: the worst of all."""
    from ray_precheck.ranks import run_ranks
    from ray_precheck.report.ranks_summary import combined, format_ranks, state_of_all

    report = run_ranks(config, found, on_folder=lambda folder: invocation.announce(str(folder)))
    ranks = _summaries(report, found)
    print(format_ranks(ranks[: len(report.ranks)], report.total, report.folder))
    if not report.completed:
        _say_how_to_go_on(report.stop_reason, invocation, report.folder)
    whole = combined(ranks, report.folder)
    state = state_of_all(ranks, whole, completed=report.completed, reason=report.stop_reason)
    code = exit_code(whole, state)
    if any(rank.is_unreadable for rank in report.ranks):
        code = worst_of(code, UNUSABLE)
    write_ranks_files(options, ranks, whole, state, code)
    return code


def _summaries(report: "RanksReport", found: FoundDumps) -> "list[RankSummary]":
    """Return what became of each dump, those that were not begun included."""
    from ray_precheck.report.ranks_summary import RankSummary
    from ray_precheck.report.state import Progress, RunState, state_of_end

    ranks = []
    for rank in report.ranks:
        label, own = rank.found.label, rank.report
        if own is None:
            is_error = rank.is_unreadable
            code = UNUSABLE if is_error else NOTHING_CHECKED
            ranks.append(RankSummary(label, None, rank.problem, exit_code=code, is_error=is_error))
        else:
            state = state_of_end(own.summary, completed=own.completed, reason=own.stop_reason)
            code = exit_code(own.summary, state)
            ranks.append(RankSummary(label, own.summary, "", state, code))
    stopped = RunState(Progress.STOPPED, reason=report.stop_reason)
    problem = "not begun: the run stopped before"
    ranks += [
        RankSummary(each.label, None, problem, stopped, STOPPED, is_error=True)
        for each in found.dumps[len(report.ranks) :]
    ]
    return ranks


def _say_how_to_go_on(stop_reason: str, invocation: Invocation, results: Path) -> None:
    reason = f": {stop_reason}" if stop_reason else ""
    print(f"\nStopped before the end{reason}. To go on:")
    print(f"  {resume_command(invocation.given, results)}")


def _say_what_is_not_needed(options: argparse.Namespace) -> None:
    if options.num_splits is not None:
        NUM_SPLITS.require(options.num_splits)
        note(
            f"-n {options.num_splits} changes nothing: calls are not split beforehand, each device of"
            " -d takes the next one when it is free"
        )
    if options.jit_compile:
        note("-j changes nothing: operators run as the framework compiles them by itself")


def run_config(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that parsed options ask for.

    Raises:
        UsageError: both -d and --devices are given, or the file of -config is wrong.
    """
    if options.device is not None and options.devices is not None:
        raise UsageError(
            "-d and --devices exclude each other: -d takes ids of this machine, --devices names"
            " devices of the cluster"
        )
    resume = options.result_csv_path
    listed = CheckerConfig()
    if options.config_path is not None:
        listed = read_checker_config(Path(options.config_path))
        for warning in listed.warnings:
            note(f"warning: {warning}")
    return RunConfig(
        dump=Path(options.api_info_file),
        framework=options.framework,
        out=Path(options.out_path),
        devices=tuple(options.device or (0,)) if options.devices is None else options.devices,
        exclude=options.exclude,
        resume_csv=None if resume is None else Path(resume),
        save_error_data=options.save_error_data,
        address=options.address,
        device_type=options.device_type,
        seed=options.seed,
        timeout_s=options.timeout,
        tested=options.tested,
        standard=options.standard,
        max_memory_gib=options.max_memory,
        spares=options.spares,
        bench_workers=options.bench_workers,
        bench_budget_s=options.bench_budget,
        shared_fs=options.shared_fs,
        filter_alike=options.filter_api,
        bench_modules=tuple(options.bench_module),
        distribution=options.distribution,
        force=options.force,
        retry=tuple(options.retry),
        debug=options.debug,
        keywords=tuple(options.keywords),
        white_list=listed.white_list,
        black_list=listed.black_list,
        error_data_path=listed.error_data_path,
        # As msprobe's guide has it: multi_run_ut without -o saves to ./ut_error_data{timestamp}.
        error_data_as_msprobe=options.save_error_data
        and options.command.startswith("multi_")
        and options.out_path == "./",
    )
