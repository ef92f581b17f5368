"""A job that has nothing to do with APIs gets crashes, time-outs, resume and the timeline for nothing."""

import csv
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import squares
from squares import TABLES, Opener, Squares
from squares_run import run_squares

from ray_precheck.runtime.places.cluster import Roster, living_nodes, open_cluster
from ray_precheck.runtime.ray_actors import RayActors
from ray_precheck.store.resume import hold_files, resume_run, start_run
from ray_precheck.store.settings import RunSettings

pytestmark = pytest.mark.cluster
COUNT = 400
CRASHING, HANGING = frozenset([7, 200]), frozenset([33])
SETTINGS = {"numbers": str(COUNT)}


@pytest.fixture(scope="module")
def actors(cluster_address: str) -> Iterator[RayActors]:
    with open_cluster(cluster_address, debug=False):
        yield RayActors(Roster(living_nodes(), "", print))


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_crashes_and_hangs_are_rows_and_a_stopped_run_goes_on(
    actors: RayActors, tmp_path: Path
) -> None:
    job = Squares(COUNT, Opener(CRASHING, HANGING))
    with ExitStack() as held:
        made = start_run(tmp_path, "20260101000000", RunSettings(SETTINGS), TABLES)
        assert made.result.name == "squares_result_20260101000000.csv"
        files = held.enter_context(hold_files(made))
        assert not run_squares(job, actors, files, set(), 2, lambda rows: rows >= 64)
        done = resume_run(files, set(job.names), SETTINGS, tables=TABLES)
        assert 64 <= len(done) < COUNT
        assert run_squares(job, actors, files, done, 2)
    head, *rows = rows_of(files.result)
    assert head == list(TABLES.result)
    assert [row[0] for row in rows] == job.names
    found = {row[0]: row[1:] for row in rows}
    for number in CRASHING:
        verdict, square, message = found.pop(f"n{number}")
        assert (verdict, square) == ("error", "")
        assert message.startswith("killed its worker (SIGSEGV")
    assert found.pop("n33") == ["error", "", "no answer in 3 s (--timeout)"]
    assert found == {f"n{n}": ["pass", str(n * n), ""] for n in range(COUNT) if f"n{n}" in found}
    details = rows_of(files.details)[1:]
    assert [row[0].removesuffix(".square") for row in details] == list(found)
    events = json.loads(files.timeline.read_text())
    ran = {event["name"] for event in events if event["ph"] == "X"}
    assert found.keys() <= ran


def test_it_is_less_than_a_hundred_lines() -> None:
    assert len(Path(squares.__file__).read_text("utf-8").splitlines()) < 100
