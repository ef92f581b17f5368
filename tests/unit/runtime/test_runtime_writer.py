"""The writer without its actor: rows, the timeline, and tensors that came from other machines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.replay.job import done_of
from ray_precheck.runtime.recorder import Writer
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import API_TABLES, RunFiles, decode_row, whole_rows
from ray_precheck.store.timeline import Track

pytestmark = pytest.mark.unit

BEGAN_S = 1_700_000_000.0


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return start_run(tmp_path / "out", "20260101120000", RunSettings({"dump": "d1"}))


def done(index: int, message: str = "too large, by 3") -> Done:
    result = TaskResult(
        index, f"Mint.a.{index}", Outcome.COMPLETED, Verdict.ERROR, Verdict.NONE, message
    )
    return done_of(replace(result, began_s=BEGAN_S + index, device_s=0.5))


def rows(files: RunFiles) -> list[list[str]]:
    with files.result.open("rb") as file:
        return [decode_row(row.removesuffix(b"\r\n")) for row in whole_rows(file)][1:]


def spans(files: RunFiles) -> list[Any]:
    return [event for event in json.loads(files.timeline.read_text()) if event["ph"] == "X"]


def test_what_is_finished_is_written_and_counted(files: RunFiles) -> None:
    writer = Writer(files, API_TABLES, reopen=False)
    assert not files.result.exists()  # What fails at the first use is an answer.
    assert writer.append([done(1), done(0)]) == 2
    assert [row[0] for row in rows(files)] == ["Mint.a.1", "Mint.a.0"]
    writer.complete(["Mint.a.0", "Mint.a.1"])
    assert [row[0] for row in rows(files)] == ["Mint.a.0", "Mint.a.1"]
    writer.close()


def test_when_it_ran_where_is_in_the_timeline_once_the_writer_is_closed(files: RunFiles) -> None:
    writer = Writer(files, API_TABLES, reopen=False)
    finished = [done(0), done(1)]
    assert writer.append(finished, [Track("10.0.0.7", "npu:3", "check", finished)]) == 2
    assert writer.append([], [Track("10.0.0.7", "npu:3", "device", [done(2)])]) == 0
    writer.close()
    assert [(span["name"], span["cat"], span["ts"], span["dur"]) for span in spans(files)] == [
        ("Mint.a.0", "check", int(BEGAN_S * 1e6), 500_000),
        ("Mint.a.1", "check", int((BEGAN_S + 1) * 1e6), 500_000),
        ("Mint.a.2", "device", int((BEGAN_S + 2) * 1e6), 500_000),
    ]
    assert len(rows(files)) == 2


def test_a_writer_that_has_nothing_to_write_makes_no_timeline(files: RunFiles) -> None:
    writer = Writer(files, API_TABLES, reopen=False)
    writer.append([done(0)])
    writer.close()
    assert not files.timeline.exists()


def test_the_heir_of_one_that_died_leaves_out_the_rows_that_are_there(files: RunFiles) -> None:
    dead = Writer(files, API_TABLES, reopen=False)
    dead.append([done(0)])
    dead._journal().close()  # as its death does
    heir = Writer(files, API_TABLES, reopen=True)
    assert heir.append([done(0), done(1)]) == 2
    assert [row[0] for row in rows(files)] == ["Mint.a.0", "Mint.a.1"]


def test_tensors_from_another_machine_are_saved_before_their_row(files: RunFiles) -> None:
    sent = replace(done(0), evidence=(("Mint.a.0.json", b"{}"), ("../up.npy", b"data")))
    Writer(files, API_TABLES, reopen=False).append([sent])
    found = {path.name: path.read_bytes() for path in files.errors.iterdir()}
    assert found == {"Mint.a.0.json": b"{}", "up.npy": b"data"}
    assert rows(files)[0][3] == "too large, by 3"


def test_tensors_that_cannot_be_saved_are_a_note_in_their_row_alone(files: RunFiles) -> None:
    files.errors.parent.write_text("a file where the folder should be")
    sent = replace(done(0), evidence=(("a.npy", b"data"),))
    assert Writer(files, API_TABLES, reopen=False).append([sent, done(1)]) == 2
    assert [row[3] for row in rows(files)] == [
        "too large, by 3; its tensors could not be saved: Not a directory",
        "too large, by 3",
    ]


def test_the_heir_of_a_writer_that_died_closes_its_timeline(files: RunFiles) -> None:
    first = Writer(files, API_TABLES, reopen=False)
    first.append([done(0)], [Track("10.0.0.7", "npu:3", "check", [done(0)])])
    first._journal().close()  # It is killed while it puts the files in order.
    heir = Writer(files, API_TABLES, reopen=True)
    heir.complete(["Mint.a.0"])
    heir.close()
    assert [span["name"] for span in spans(files)] == ["Mint.a.0"]
