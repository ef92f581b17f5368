"""The command of the tests: `python squares_command.py squares --counts 300 300 -o OUT`.

Each count stands for the dump of a rank, which has so many numbers.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from squares import TABLES, Opener, Squares

from ray_precheck.cli import command_line as parser
from ray_precheck.cli import entry
from ray_precheck.options.commands import PASSED, Command, Invocation, given_values
from ray_precheck.options.declared import REQUIRED, Takes, by_section, option, options_of
from ray_precheck.options.shared import CoreJobOptions, OutFolderOptions
from ray_precheck.running.run import (
    Feature,
    RunEnd,
    RunSession,
    Series,
    planned,
    results_folder,
    run_each,
    run_job,
    session_of_several,
)
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.places.choice import on_cores
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.tables import RunFiles

PAUSE_S = float(os.environ.get("SQUARES_PAUSE_S", "0"))


@dataclass(frozen=True)
class SquaresConfig(OutFolderOptions, CoreJobOptions):
    section = "what is squared"
    counts: tuple[int, ...] = option(
        REQUIRED, "--counts", help="of each rank", takes=Takes.SEVERAL, type=int
    )


class SquaresFeature(Feature[Squares, RunEnd]):
    tables = TABLES

    def __init__(self, config: SquaresConfig, session: RunSession, count: int) -> None:
        self._job = Squares(count, Opener(pause_s=PAUSE_S))
        self.names, self.fingerprint = self._job.names, {"numbers": str(count)}
        cost_s = sum(task.cost_s for task in self._job.tasks)
        self.places = session.cores_for(on_cores(config), "pytorch", cost_s)

    def job(self, files: RunFiles, done: set[str]) -> Squares:
        return self._job

    def plan(self, job: Squares, done: set[str], progress: Progress) -> TaskPlan:
        return planned(job, (task for task in job.tasks if task.name not in done), self.places)

    def report(self, files: RunFiles, end: RunEnd) -> RunEnd:
        return end


def square(config: SquaresConfig, folder: Path, session: RunSession, rank: int) -> RunEnd:
    own = folder / f"rank{rank}"
    feature = SquaresFeature(config, session, config.counts[rank])
    return run_job(feature, config, session, own, session.resumed(own, TABLES))


def execute(options: argparse.Namespace, invocation: Invocation) -> int:
    config = SquaresConfig(**given_values(options, SquaresConfig))
    folder, ranks = results_folder(config.out, config.resume_csv), range(len(config.counts))
    series = Series(folder, [Path(f"rank{rank}") for rank in ranks], "squares", "squares_result_")
    with session_of_several(
        config, series, config.resume_csv, show=True, on_files=lambda _: invocation.tell(folder)
    ) as session:
        ends = run_each(ranks, partial(square, config, folder, session), session)
    return PASSED if ends.completed else invocation.stopped(ends.stop_reason)


COMMAND = Command({"squares": "square"}, by_section(options_of(SquaresConfig)), execute, "")

if __name__ == "__main__":
    parser.COMMANDS = (COMMAND, *parser.COMMANDS)
    sys.exit(entry())
