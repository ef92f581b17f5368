"""The options of the files of a run and of going on with it. Groups of a command's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ray_precheck.options.declared import Prerequisite, Takes, option
from ray_precheck.options.rules import OneOf

RETRY = ("error", "skip", "crash", "all")


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
    """Going on with a run."""

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
