"""The options of every command that runs a job.

Comes in: options of the command line or arguments of a function. Goes out: groups of a command's
configuration. Each option is declared once, as a field (`options.declared` says how); a command whose
configuration has a group takes its options. Read by `running` and `runtime`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import (
    Number,
    OneOf,
    Prerequisite,
    Takes,
    option,
    require_valid,
)
from ray_precheck.options.places import CoreOptions, PlaceOptions

RETRY = ("error", "skip", "crash", "all")
# The fields of options that mean nothing where a job runs on processor cores.
WITHOUT_DEVICE = frozenset(("device_type", "bench_workers", "bench_budget_s", "max_memory_gib"))


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results go.

    `error_data_path` is the folder below which `save_error_data` saves, None for that of the results;
    with `error_data_as_msprobe` it is ut_error_data and the timestamp there, else error_data/ and it.
    """

    section: ClassVar[str] = "where the results go"

    out: Path = option(
        Path("./"),
        "-o",
        "--out_path",
        help="folder of the results, made if missing (default ./)",
        metavar="FOLDER",
        becomes=Path,
    )
    save_error_data: bool = option(
        False,
        "-save_error_data",
        help="save inputs and outputs of failing APIs under FOLDER/error_data",
        more="Each run has a folder `{timestamp}` there (`multi_run_ut` without `-o`:"
        " `./ut_error_data{timestamp}`, as msprobe has it). `ray-precheck repro {that folder}/{API}.json`"
        " prints a Python script of one screen that shows the failure with the framework and NumPy alone"
        " ([saved errors](../store/README.md#saved-errors))",
        takes=Takes.NOTHING,
    )
    error_data_path: Path | None = None
    error_data_as_msprobe: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Resuming a run."""

    section: ClassVar[str] = "going on with a run"

    resume_csv: Path | None = option(
        None,
        "-csv_path",
        "--result_csv_path",
        help="go on in this result CSV; for a folder of ranks, in the folder of their results",
        more="And in its details file. A CSV that msprobe wrote will do. Of several ranks those that"
        " are finished are left, the others go on or begin",
        takes=Takes.ONCE,
        metavar="CSV",
        becomes=Path,
    )
    force: bool = option(
        False,
        "--force",
        help="with -csv_path: go on though the dump, its files or a setting differ",
        more="Rows that are there stay, those that the dump does not have come last",
        takes=Takes.NOTHING,
        needs=Prerequisite("resume_csv", "the result CSV to go on in nevertheless"),
    )
    retry: tuple[str, ...] = option(
        (),
        "--retry",
        help="with -csv_path: do these rows again, {choices}",
        more="`crash`: errors that the machine caused: a crash, a time-out, memory, a lost node; `all`: every"
        " call of the dump, whose files of tensors may have changed",
        takes=Takes.SEVERAL,
        metavar="KIND",
        rule=OneOf(RETRY),
        needs=Prerequisite("resume_csv", "the result CSV whose rows are done again"),
    )


@dataclass(frozen=True, kw_only=True)
class OutFolderOptions:
    """Where the results go; `--output_path` is msprobe's name."""

    section: ClassVar[str] = "where the results go"

    out: Path = option(
        Path("./"),
        "-o",
        "--out_path",
        "--output_path",
        help="folder of the results, made if missing (default ./)",
        takes=Takes.ONCE,
        metavar="FOLDER",
        becomes=Path,
    )


_LONGEST_S = 1e7
_PROCESSES = Number("the count of processes", most=4096)


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """The limits of a record, and the numbers of processes.

    `max_memory_gib` 0 is a share of the machine's memory. `spares` and `bench_workers` None are the
    defaults that their help names.
    """

    section: ClassVar[str] = "time, memory, processes"

    timeout_s: float = option(
        300.0,
        "--timeout",
        help="seconds for a record (default {default})",
        more="A record without an answer by then is an error; costly records have more time. The time"
        " that its threads wait for a processor on a busy machine is not counted",
        type=float,
        metavar="S",
        rule=Number("the time of a record in seconds", 0, _LONGEST_S, whole=False, above=True),
    )
    max_memory_gib: float = option(
        0.0,
        "--max-memory",
        help="memory for the tensors of one record (default: a worker's share of 70 % of the machine's)",
        more="A record whose estimate is larger is SKIP before it allocates; a record that turns out"
        " larger is an error",
        type=float,
        metavar="GIB",
        rule=Number("the memory of a record in GiB", 0, 1e6, whole=False),
    )
    spares: int | None = option(
        None,
        "--spares",
        help="processes that each device keeps ready to replace a broken one (default: 1 on the CPU,"
        " else 0)",
        more="They start after a minute or the first crash. On an accelerator a second process takes"
        " memory of the device",
        type=int,
        metavar="N",
        rule=Number("the count of spare processes", most=_PROCESSES.most),
    )
    bench_workers: int | None = option(
        None,
        "--bench-workers",
        help="processes that compute benches beside the devices' own (default: one for each spare"
        " core of the cluster; 0: none)",
        type=int,
        metavar="N",
        rule=_PROCESSES,
    )
    bench_budget_s: float = option(
        600.0,
        "--bench-budget",
        help="seconds that the bench of a record may take, else it is SKIP (default {default})",
        type=float,
        metavar="S",
        rule=Number("the time of a bench in seconds", 0, _LONGEST_S, whole=False, above=True),
    )


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """How errors are shown."""

    section: ClassVar[str] = "help"

    debug: bool = option(
        False, "--debug", help="show tracebacks and what Ray prints", takes=Takes.NOTHING
    )


@dataclass(frozen=True, kw_only=True)
class JobOptions(PlaceOptions, LimitOptions, ResumeOptions, DebugOptions):
    """The options of a command that runs a job on devices; `running` reads no others."""

    def validate(self) -> None:
        """Check the values that can be checked without the dumps or the machine.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        require_valid(self)


@dataclass(frozen=True, kw_only=True)
class CoreJobOptions(CoreOptions, JobOptions):
    """The options of a command that runs a job on processor cores."""
