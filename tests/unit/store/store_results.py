"""Results as a run makes them, for the tests of the store."""

import io
from collections.abc import Iterable
from pathlib import Path

from ray_precheck.replay.job import done_of
from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.journal import Journal
from ray_precheck.store.tables import (
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    RunFiles,
    header,
    row_name,
    run_files,
    whole_rows,
)

RESULT_HEADER = header(RESULT_COLUMNS)
DETAIL_HEADER = header(DETAIL_COLUMNS)


def passed(index: int, name: str, outputs: int = 1, message: str = "") -> TaskResult:
    """A call that passes, with one detail row for each output."""
    checks = tuple(
        OutputCheck(
            name=f"{name}.forward.output.{position}",
            bench_dtype="Float64",
            tested_dtype="Float32",
            shape="(2, 3)",
            metrics=Metrics(0.999, 1e-6, 2e-6),
            verdict=Verdict.PASS,
            message=message,
        )
        for position in range(outputs)
    )
    return TaskResult(
        index, name, Outcome.COMPLETED, Verdict.PASS, Verdict.NONE, message, checks=checks
    )


def encoded(results: Iterable[TaskResult], *added: str) -> list[Done]:
    """Results as the journal takes them; `added` are the columns that the standard of the run adds."""
    return [done_of(result, added) for result in results]


def files_in(folder: Path, stamp: str = "20260101120000") -> RunFiles:
    """The files of a run in a folder; none is made."""
    return run_files(folder / f"accuracy_checking_result_{stamp}.csv")


def open_journal(files: RunFiles) -> Journal:
    """The journal of a run, opened for appending."""
    return Journal.open(files.result, files.details)


def contents(files: RunFiles) -> tuple[bytes, bytes]:
    """The bytes of both files."""
    return files.result.read_bytes(), files.details.read_bytes()


def split_rows(data: bytes) -> list[bytes]:
    """The whole rows of a file, the header first."""
    return list(whole_rows(io.BytesIO(data)))


def names_in(data: bytes) -> list[str]:
    """The names in the rows below the header."""
    return [row_name(row) for row in split_rows(data)[1:]]
