"""Forks that are killed cost no row: what kills one alone has a row that says so."""

import faulthandler
import os
import signal
import time
from pathlib import Path

import pytest

from ray_precheck.commands.compare import run
from ray_precheck.commands.compare.run import Compare, compared_in_forks
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done, Task

pytestmark = pytest.mark.unit
TASKS = [Task(number, f"Torch.add.{number}.forward", 0.1) for number in range(40)]


def done(task: Task, said: str = "compared") -> Done:
    return Done(task.index, task.name, Verdict.PASS, said.encode())


def found(compare: Compare) -> list[str]:
    """Return what is said of each task, in the order in which they come."""
    every = list(compared_in_forks(compare, done, TASKS, 2))
    assert [each.name for each in every] == [task.name for task in TASKS]
    return [each.row.decode() for each in every]


def test_pieces_come_in_the_order_of_their_tasks() -> None:
    def compare(task: Task) -> Done:
        time.sleep(0.01 * (task.index % 3))
        return done(task, f"in {os.getpid() == parent}")

    parent = os.getpid()
    assert found(compare) == ["in False"] * len(TASKS)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            signal.SIGBUS,
            "the process that compared it ended with SIGBUS, also where it compared nothing else;"
            " a file that is cut while it is read does that",
        ),
        (
            signal.SIGKILL,
            "the process that compared it ended with SIGKILL, also where it compared nothing else",
        ),
    ],
)
def test_a_piece_that_kills_every_fork_has_failed_and_the_others_are_compared(
    number: int, said: str
) -> None:
    def compare(task: Task) -> Done:
        if task.index in (7, 31):
            faulthandler.disable()  # of pytest: the end is wanted
            os.kill(os.getpid(), number)
        return done(task)

    said_of = found(compare)
    assert [said_of[7], said_of[31]] == [said, said]
    assert said_of.count("compared") == len(TASKS) - 2


def test_a_fork_that_was_killed_once_costs_no_row(tmp_path: Path) -> None:
    def compare(task: Task) -> Done:
        if task.index == 12 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done(task)

    assert found(compare) == ["compared"] * len(TASKS)
    assert (tmp_path / "killed").exists()


def test_forks_leave_the_interrupt_of_the_terminal_to_their_parent() -> None:
    # Ctrl-C reaches all processes of the terminal, and only the parent ends the run in an orderly way.
    def compare(task: Task) -> Done:
        if task.index in (0, 20):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return done(task)

    assert found(compare) == ["compared"] * len(TASKS)


def test_a_run_of_pieces_is_short_in_number_and_in_time() -> None:
    tasks = [Task(number, "", 1e-4) for number in range(300)]
    assert [len(run) for run in run._runs(tasks)] == [128, 128, 44]
    tasks = [Task(number, "", 0.3) for number in range(5)]
    assert [len(run) for run in run._runs(tasks)] == [2, 2, 1]
