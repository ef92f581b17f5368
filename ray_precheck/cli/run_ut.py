"""The commands run_ut, multi_run_ut and their other names: check the APIs of a dump.

Comes in: the options of the command. Goes out: its exit code. Called through the parser.
"""

import argparse
from pathlib import Path

from ray_precheck.cli.config_file import CheckerConfig, read_checker_config
from ray_precheck.cli.exit_codes import EXIT_CODES, UNUSABLE, worst_of
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
    write_report_files,
)
from ray_precheck.config import Number, RunConfig
from ray_precheck.dump.folders import FoundDump, FoundDumps, find_dumps
from ray_precheck.errors import UsageError

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
    """Check the dumps of several ranks or steps and return the exit code: the worst of all.

    Each dump has files of its own for --junit and --json: report.xml is report.step0.rank1.xml.
    """
    from ray_precheck.ranks import run_ranks
    from ray_precheck.report.ranks_summary import RankSummary, combined, format_ranks
    from ray_precheck.report.state import state_of_end

    report = run_ranks(config, found, on_folder=lambda folder: invocation.announce(str(folder)))
    ranks = [
        RankSummary(
            rank.found.label, None if rank.report is None else rank.report.summary, rank.problem
        )
        for rank in report.ranks
    ]
    print(format_ranks(ranks, report.total, report.folder))
    if not report.completed:
        _say_how_to_go_on(report.stop_reason, invocation, report.folder)
    for rank in report.ranks:
        if rank.report is not None:
            own = rank.report
            state = state_of_end(own.summary, completed=own.completed, reason=own.stop_reason)
            write_report_files(_of_rank(options, rank.found), own.summary, state)
    whole = combined(ranks, report.folder)
    code = exit_code(whole, state_of_end(whole, completed=report.completed))
    unreadable = any(rank.is_unreadable for rank in report.ranks)
    return worst_of(code, UNUSABLE) if unreadable else code


def _of_rank(options: argparse.Namespace, found: FoundDump) -> argparse.Namespace:
    """Return the options of the files for CI, with the names that they have for one of the dumps."""

    def named(given: str | None) -> str | None:
        if given is None or not Path(given).suffix:
            return given and f"{given}.{found.label.replace('/', '.')}"
        path = Path(given)
        return str(path.with_name(f"{path.stem}.{found.label.replace('/', '.')}{path.suffix}"))

    return argparse.Namespace(junit=named(options.junit), json=named(options.json))


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
