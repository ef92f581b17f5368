"""The groups of options that several commands share.

Comes in: the parser of a command. Goes out: the same parser with the options of one subject added.
Called by the modules of the commands; what the options mean together stands in `config`.
"""

import argparse
from collections.abc import Sequence

from ray_precheck.cli.actions import FilterOrFramework, Once, Version
from ray_precheck.config import (
    DEVICE_GRAMMAR,
    DEVICE_TYPES,
    DISTRIBUTIONS,
    FRAMEWORKS,
    RETRY,
    STANDARDS,
    TESTED,
)


def add_msprobe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of msprobe."""
    group = parser.add_argument_group("options of msprobe")
    group.add_argument(
        "-f",
        dest="filter_or_framework",
        nargs="?",
        action=FilterOrFramework,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="alone: --filter_api; with a name: --framework",
    )
    group.add_argument(
        "--framework",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"{choices(FRAMEWORKS, 'as the dump says')}; also before the command",
    )
    group.add_argument(
        "-api_info",
        "--api_info_file",
        required=True,
        action=Once,
        metavar="DUMP",
        help="the dump.json, or a folder: of a rank, of a step, or of all steps",
    )
    group.add_argument(
        "-o",
        "--out_path",
        default="./",
        metavar="FOLDER",
        help="folder of the results (default ./)",
    )
    group.add_argument(
        "-csv_path",
        "--result_csv_path",
        action=Once,
        metavar="CSV",
        help="go on in this result CSV; for a folder of ranks, in the folder of their results",
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
    group.add_argument(
        "-config",
        "--config_path",
        action=Once,
        metavar="JSON",
        help="msprobe's config.json: white_list, black_list, error_data_path",
    )
    group.add_argument(
        "-n",
        "--num_splits",
        type=int,
        metavar="N",
        help="accepted, and not needed: each device takes the next call when it is free",
    )
    group.add_argument(
        "-j",
        "--jit_compile",
        action="store_true",
        help="accepted, and not needed: operators are run as the framework runs them by itself",
    )


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of where it runs."""
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
    group.add_argument("--device-type", default="auto", help=choices(DEVICE_TYPES, "auto"))
    group.add_argument(
        "--shared-fs",
        action="store_true",
        help="captured tensors have the same paths on every machine: workers read them themselves",
    )


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is compared with what."""
    group = parser.add_argument_group("what is compared with what")
    group.add_argument("--seed", type=int, default=0, help="seed of the inputs (default 0)")
    group.add_argument(
        "--distribution",
        default="recorded",
        help=f"of generated inputs; {choices(DISTRIBUTIONS, 'recorded: mean, norm, meaning')}",
    )
    group.add_argument(
        "--tested",
        default="auto",
        help=f"whose results; {choices(TESTED, 'auto: captured in real mode')}",
    )
    group.add_argument(
        "--standard",
        default="msprobe",
        metavar="RULE",
        help=f"the rule of the verdicts, {choices(STANDARDS, 'msprobe')}, or a YAML file",
    )
    group.add_argument(
        "--bench-module",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with benches of your own, @ray_precheck.reference(...); repeatable",
    )


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of which calls are checked."""
    group = parser.add_argument_group("which calls are checked")
    group.add_argument(
        "-k",
        dest="keywords",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only calls whose name fits, as pytest's -k: 'matmul and not Tensor.'; repeatable",
    )
    group.add_argument(
        "-filter_api",
        "--filter_api",
        "--filter-api",
        action="store_true",
        help="of calls alike in name, shapes, dtypes and scalars check one; the others name it",
    )


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add --list."""
    parser.add_argument(
        "--list",
        action="store_true",
        dest="lists",
        help="list what would be checked, what not and why, and the estimated cost; start nothing",
    )


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add --version."""
    parser.add_argument(
        "-V",
        "--version",
        action=Version,
        help="show the versions of ray_precheck, Python, ray and the frameworks, and exit",
    )


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of time, memory and processes."""
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


def add_resume_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of going on with a run."""
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


def add_debug(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --debug, which `text` explains."""
    parser.add_argument("--debug", action="store_true", help=text)


def choices(names: Sequence[str], default: str) -> str:
    """Return the help of an option that takes one of `names`."""
    return f"{'|'.join(names)} (default: {default})"
