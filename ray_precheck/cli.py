"""The command line: msprobe's, and long options of our own.

Comes in: arguments. Goes out: an exit code (0 all passed, 1 some API is in error, 2 usage or
unreadable input, 3 stopped and resumable). Errors are one sentence on standard error.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from ray_precheck.config import (
    DEVICE_GRAMMAR,
    DEVICE_TYPES,
    DISTRIBUTIONS,
    FRAMEWORKS,
    RETRY,
    STANDARDS,
    TESTED,
    RunConfig,
)
from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.guardian import guard

PASSED, IN_ERROR, UNUSABLE, STOPPED = 0, 1, 2, 3
COMMANDS = {
    "run_ut": "check the APIs of a dump",
    "multi_run_ut": "the same; msprobe's name for several devices",
    "acc_check": "another name of run_ut (msprobe 26)",
    "multi_acc_check": "another name of multi_run_ut (msprobe 26)",
}
COMPARE_RESULTS = "compare_results"
# Not in the command that goes on: the CSV is named anew, and what a resume has dropped or accepted
# once is so for good (a second --retry would drop what the first one has done again).
_RESUME_OPTIONS = ("-csv_path", "--result_csv_path", "--retry", "--force")
COMPARE_EXIT_CODES = (
    "exit codes: 0 none in error, 1 some output is in error, 2 wrong usage or input"
)
EXIT_CODES = (
    "exit codes: 0 all passed, 1 some API is in error, 2 wrong usage or input, 3 stopped, resumable"
)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option as one sentence, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see ray-precheck --help)")


def entry() -> int:
    """Run the command of this process, watched over by a guardian; return the exit code."""
    given = sys.argv[1:]

    def epitaph(result: str, how: str) -> None:
        print(f"\nray-precheck: error: the process of the run was ended ({how})", file=sys.stderr)
        if result and Path(result).exists():
            print("What was acknowledged is on disk. To go on:", file=sys.stderr)
            print(f"  {resume_command(given, Path(result))}", file=sys.stderr)

    return guard(lambda announce: main(given, announce), epitaph)


def main(
    arguments: Sequence[str] | None = None, announce: Callable[[str], None] = lambda text: None
) -> int:
    """Run a command and return the exit code; `announce` is told the result CSV once it is there."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        return _run(given, announce)
    except PrecheckError as error:
        if debug:
            raise
        print(f"ray-precheck: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ray-precheck: interrupted", file=sys.stderr)
        return STOPPED
    except Exception as error:
        # Broad, because what is meant for people has been caught above: this is a fault of ours, or
        # of a library, and the run can still go on from its files.
        if debug:
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(
            f"ray-precheck: internal error: {text} (--debug shows the traceback)", file=sys.stderr
        )
        return STOPPED


def _run(given: list[str], announce: Callable[[str], None]) -> int:
    options = build_parser().parse_args(given)
    if options.command == COMPARE_RESULTS:
        return _compare_results(options)
    config = run_config(options)
    # Imported here, so that --help and wrong options answer at once.
    from ray_precheck.report.summary import format_summary
    from ray_precheck.session import run

    report = run(config, on_files=lambda files: announce(str(files.result)))
    print(format_summary(report.summary))
    if report.completed:
        return IN_ERROR if report.summary.errors else PASSED
    reason = f": {report.stop_reason}" if report.stop_reason else ""
    print(f"\nStopped before the end{reason}. To go on:")
    print(f"  {resume_command(given, report.files.result)}")
    return STOPPED


def _compare_results(options: argparse.Namespace) -> int:
    """Compare two result sets and return the exit code."""
    from ray_precheck.report.compare_results import compare_results
    from ray_precheck.report.compare_text import format_comparison
    from ray_precheck.schema.result import Verdict

    stamp = time.strftime("%Y%m%d%H%M%S")
    paths = Path(options.device_details), Path(options.reference_details)
    comparison = compare_results(*paths, Path(options.out_path), stamp)
    print(format_comparison(comparison))
    return IN_ERROR if comparison.count(Verdict.ERROR) else PASSED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="ray-precheck",
        description="Find the operators of a training step that are numerically wrong on a device.",
        epilog=EXIT_CODES,
    )
    parser.add_argument(
        "-f",
        "--framework",
        default="",
        metavar="NAME",
        help=_choices(FRAMEWORKS, "as the dump says"),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
        _add_msprobe_options(command)
        _add_place_options(command)
        _add_check_options(command)
        _add_limit_options(command)
        _add_resume_options(command)
        command.add_argument(
            "--debug", action="store_true", help="show tracebacks and what Ray prints"
        )
    _add_compare_results(commands)
    return parser


def _add_compare_results(commands: "argparse._SubParsersAction[_Parser]") -> None:
    text = "compare the errors of one device with those of another, from two details files"
    command = commands.add_parser(
        COMPARE_RESULTS, help=text, description=text, epilog=COMPARE_EXIT_CODES
    )
    command.add_argument(
        "device_details", metavar="DETAILS", help="the details CSV of the device that is judged"
    )
    command.add_argument(
        "reference_details",
        metavar="REFERENCE",
        help="that of the device that it is compared with: the same dump, seed and --tested",
    )
    command.add_argument(
        "-o",
        "--out_path",
        default="./",
        metavar="FOLDER",
        help="folder of the comparison (default ./)",
    )
    command.add_argument("--debug", action="store_true", help="show tracebacks")


def _add_msprobe_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of msprobe")
    group.add_argument(
        "-f",
        "--framework",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"{_choices(FRAMEWORKS, 'as the dump says')}; also before the command",
    )
    group.add_argument(
        "-api_info", "--api_info_file", required=True, metavar="DUMP", help="the dump.json"
    )
    group.add_argument(
        "-o",
        "--out_path",
        default="./",
        metavar="FOLDER",
        help="folder of the results (default ./)",
    )
    group.add_argument(
        "-csv_path", "--result_csv_path", metavar="CSV", help="go on in this result CSV"
    )
    group.add_argument(
        "-d",
        "--device",
        nargs="+",
        type=int,
        metavar="ID",
        help="ids of devices of this machine (default 0)",
    )
    group.add_argument(
        "-save_error_data",
        action="store_true",
        help="save inputs and outputs of what fails under FOLDER/error_data",
    )


def _add_place_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it runs")
    group.add_argument(
        "--address", default="", help="a running Ray cluster (default: start one here)"
    )
    group.add_argument(
        "--devices",
        metavar="WHICH",
        help="instead of -d, devices of the whole cluster: all (on the CPU one worker for each node),"
        f" or {DEVICE_GRAMMAR}. NODE is a host name, an address, or a label or its value; without"
        " IDS every device of the node",
    )
    group.add_argument(
        "--exclude",
        default="",
        metavar="WHICH",
        help="nodes and devices to leave out, written as for --devices",
    )
    group.add_argument("--device-type", default="auto", help=_choices(DEVICE_TYPES, "auto"))
    group.add_argument(
        "--shared-fs",
        action="store_true",
        help="captured tensors have the same paths on every machine: workers read them themselves",
    )


def _add_check_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared with what")
    group.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
    group.add_argument(
        "--distribution",
        default="recorded",
        help=f"of generated inputs; {_choices(DISTRIBUTIONS, 'recorded: mean, norm, meaning')}",
    )
    group.add_argument(
        "--tested",
        default="auto",
        help=f"whose results; {_choices(TESTED, 'auto: captured in real mode')}",
    )
    group.add_argument(
        "--standard",
        default="msprobe",
        metavar="RULE",
        help=f"the rule of the verdicts, {_choices(STANDARDS, 'msprobe')}, or a YAML file",
    )
    group.add_argument(
        "--bench-module",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with benches of your own, @ray_precheck.reference(...); repeatable",
    )
    group.add_argument(
        "-filter_api",
        "--filter_api",
        "--filter-api",
        action="store_true",
        help="of calls alike in name, shapes, dtypes and scalars check one; the others name it",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("time, memory, processes")
    group.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds for a record (default 300)",
    )
    group.add_argument(
        "--max-memory",
        type=float,
        default=0.0,
        metavar="GIB",
        help="memory for the tensors of one record (default: a worker's share of 70 %% of the machine's)",
    )
    group.add_argument(
        "--spares",
        type=int,
        metavar="N",
        help="processes that each device keeps ready for one that breaks (default: 1 on the CPU, else 0)",
    )
    group.add_argument(
        "--bench-workers",
        type=int,
        metavar="N",
        help="processes that compute benches beside the devices' own (default: one for each spare"
        " core of the cluster; 0: none)",
    )
    group.add_argument(
        "--bench-budget",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds that the bench of a record may take, else it is SKIP (default 600)",
    )


def _add_resume_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("going on with a run")
    group.add_argument(
        "--retry",
        nargs="+",
        default=[],
        metavar="KIND",
        help=f"with -csv_path: do these rows again, {'|'.join(RETRY)}",
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="with -csv_path: go on though the dump or a setting differs",
    )


def _choices(choices: Sequence[str], default: str) -> str:
    return f"{'|'.join(choices)} (default: {default})"


def run_config(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that parsed options ask for.

    Raises:
        UsageError: both -d and --devices are given.
    """
    if options.device is not None and options.devices is not None:
        raise UsageError(
            "-d and --devices exclude each other: -d takes ids of this machine, --devices names"
            " devices of the cluster"
        )
    resume = options.result_csv_path
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
    )


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
