"""The rows of distributions: made of the rows of calls, with the same bytes after every history."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ray_precheck.accuracy.random.pooled import Drawn, Sums, drawn_text
from ray_precheck.commands.precheck.distribution import add_distributions
from ray_precheck.replay.job import done_of
from ray_precheck.schema.result import Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import load_done, resume_run, start_run
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import RunFiles, added_setting, decode_row, row_name, whole_rows

pytestmark = pytest.mark.unit

PRINT = {"dump": "a", **added_setting(("RMSE",))}
PASS, ERROR = Verdict.PASS, Verdict.ERROR


def drew(name: str, off: float, pattern: str = "", own: Verdict = PASS) -> TaskResult:
    """A random call whose share of dropped elements is a sum off."""
    text = drawn_text(Drawn((Sums("dropped", 1000, 100.0, off, 90.0, 72.0),), pattern))
    row = OutputCheck(
        f"{name}.forward.output.0", "", "f", "", None, own, "random: told", drawn=text
    )
    message = "forward.output.0: random: told" if own is ERROR else ""
    return TaskResult(0, name, Outcome.COMPLETED, own, Verdict.NONE, message, (row,))


def plain(name: str) -> TaskResult:
    row = OutputCheck(f"{name}.forward.output.0", "f", "f", "", None, PASS)
    return TaskResult(0, name, Outcome.COMPLETED, PASS, Verdict.NONE, checks=(row,))


CALLS = [
    drew("Torch.nn.drop.0", 40.0),
    plain("Torch.add.0"),
    drew("Torch.nn.drop.1", 40.0),
    drew("Torch.rand.0", 1.0),
    plain("Torch.add.1"),
]
NAMES = [call.name for call in CALLS]


def write(files: RunFiles, results: Sequence[TaskResult]) -> None:
    journal = Journal.open(files.result, files.details)
    for result in results:
        journal.append([done_of(result, ("RMSE",))])
    journal.close()


def complete(files: RunFiles) -> tuple[bytes, bytes]:
    journal = Journal.open(files.result, files.details)
    journal.complete(NAMES)
    journal.close()
    add_distributions(files)
    return files.result.read_bytes(), files.details.read_bytes()


def ran(folder: Path, calls: Sequence[TaskResult] = CALLS) -> tuple[RunFiles, tuple[bytes, bytes]]:
    folder.mkdir(exist_ok=True)
    files = start_run(folder, "1", RunSettings(PRINT))
    write(files, calls)
    return files, complete(files)


def names(details: bytes) -> list[str]:
    return [row_name(row) for row in list(whole_rows(details.splitlines(True)))[1:]]


def test_an_operator_has_a_row_behind_its_last_call_which_is_in_error_with_it(
    tmp_path: Path,
) -> None:
    _, (result, details) = ran(tmp_path)
    assert names(details) == [
        "Torch.nn.drop.0.forward.output.0",
        "Torch.add.0.forward.output.0",
        "Torch.nn.drop.1.forward.output.0",
        "Torch.nn.drop.distribution",
        "Torch.rand.0.forward.output.0",
        "Torch.rand.distribution",
        "Torch.add.1.forward.output.0",
    ]
    cells = {row[0]: row for row in map(decode_row, details.splitlines(True)[1:])}
    assert {len(row) for row in cells.values()} == {10}
    assert cells["Torch.nn.drop.distribution"][7] == "error"
    assert cells["Torch.rand.distribution"][7] == "pass"
    rows = [decode_row(row) for row in result.splitlines(True)[1:]]
    assert [row[1] for row in rows] == ["pass", "pass", "error", "pass", "pass"]
    assert rows[2][3].startswith(
        "distribution: Torch.nn.drop.distribution: random: 2,000 elements drawn in 2 calls: the share"
        " of dropped elements is 0.14, limits "
    )


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_calls_that_end_in_any_order_give_the_same_bytes(tmp_path: Path, order: list[int]) -> None:
    _, expected = ran(tmp_path / "a")
    assert ran(tmp_path / "b", [CALLS[i] for i in order])[1] == expected


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("torn", [0, 20])
def test_a_run_that_was_killed_and_resumed_gives_the_same_bytes(
    tmp_path: Path, first: int, torn: int
) -> None:
    _, expected = ran(tmp_path / "a")
    (tmp_path / "b").mkdir()
    files = start_run(tmp_path / "b", "1", RunSettings(PRINT))
    write(files, CALLS[:first])
    if torn and first:
        files.details.write_bytes(files.details.read_bytes()[:-torn])
    done = resume_run(files, set(NAMES), PRINT)
    write(files, [call for call in CALLS if call.name not in done])
    assert complete(files) == expected


def test_a_completed_run_is_left_as_it_is(tmp_path: Path) -> None:
    files, expected = ran(tmp_path)
    before = files.result.stat().st_ino, files.details.stat().st_ino
    settings = load_settings(files.settings)
    assert settings is not None
    assert settings.is_untouched(files.result, files.details)
    assert complete(files) == expected
    assert (files.result.stat().st_ino, files.details.stat().st_ino) == before


@pytest.mark.parametrize("lost", ["result", "details", "settings"])
def test_a_run_that_was_killed_while_it_wrote_the_rows_gives_the_same_bytes(
    tmp_path: Path, lost: str
) -> None:
    files, expected = ran(tmp_path / "a")
    if lost != "settings":  # The other file was written before the kill.
        path = files.details if lost == "details" else files.result
        plain_files = _without_rows(tmp_path / "b")
        source = plain_files.details if lost == "details" else plain_files.result
        path.write_bytes(source.read_bytes())
    files.settings.write_text('{"dump": "a", "added columns": "RMSE"}')
    done = resume_run(files, set(NAMES), PRINT)
    write(files, [call for call in CALLS if call.name not in done])
    assert complete(files) == expected


def _without_rows(folder: Path) -> RunFiles:
    """The files of the same run before the rows of distributions."""
    folder.mkdir()
    files = start_run(folder, "1", RunSettings(PRINT))
    write(files, CALLS)
    return files


def test_a_note_of_an_earlier_run_is_gone_where_a_retry_was_honest(tmp_path: Path) -> None:
    files, _ = ran(tmp_path / "a")
    honest = [
        replace(call, checks=drew(call.name, 1.0).checks) for call in CALLS if "drop" in call.name
    ]
    calls = [honest.pop(0) if "drop" in call.name else call for call in CALLS]
    done = resume_run(files, set(NAMES), PRINT, retry=("error",))
    assert done == {"Torch.add.0", "Torch.rand.0", "Torch.add.1"}
    write(files, [call for call in calls if call.name not in done])
    assert complete(files) == ran(tmp_path / "b", calls)[1]


def test_the_last_call_keeps_its_own_error(tmp_path: Path) -> None:
    calls = [drew("Torch.rand.0", 1.0), drew("Torch.rand.1", 99.0, own=ERROR)]
    files, (result, _) = ran(tmp_path, calls)
    assert b"forward.output.0: random: told; distribution: Torch.rand.distribution: " in result
    more = [*calls, drew("Torch.rand.2", -99.0)]
    done = load_done(files, {call.name for call in more})
    write(files, [call for call in more if call.name not in done])
    _, (expected, _) = ran(tmp_path / "b", more)
    assert complete(files)[0] == expected


def test_calls_with_the_same_draws_are_named(tmp_path: Path) -> None:
    calls = [drew(f"Torch.rand.{i}", 1.0, "00ff") for i in (0, 3, 7)]
    _, (result, _) = ran(tmp_path, calls)
    assert b"the draws of Torch.rand.0, Torch.rand.3 and 1 more are the same" in result


def test_a_run_without_random_calls_is_left_as_it_is(tmp_path: Path) -> None:
    _, (_, details) = ran(tmp_path, [plain("Torch.add.0")])
    assert names(details) == ["Torch.add.0.forward.output.0"]
