"""Captures that are killed at random moments leave what the dump reader reads, and what can be finished."""

import json
import os
import shutil
from pathlib import Path

import pytest
from capture_kills import check_step, kill_captures, read_step, train

pytestmark = pytest.mark.frameworks

# How many captures are killed, and the seed of the moments.
KILLS, SEED = (int(os.environ.get(name, less)) for name, less in (("KILLS", 1), ("SEED", 1)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a step that nobody disturbed."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("whole")
    train(folder, "mix", steps=1)
    (step,) = folder.glob("step0/*")
    return step


def killed(whole: Path, folder: Path, count: int, torn: bytes = b"") -> Path:
    """The log of a step's first records, as a kill leaves it."""
    step = read_step(whole)
    folder.mkdir()
    header = step.header.removesuffix(b', "data": {') + b"}\n"
    lines = [b"{%b}\n" % record for record in step.records]
    (folder / "dump.jsonl").write_bytes(b"".join([header, *lines[:count], torn]))
    number_of = {
        key: record.get("stack") for line in lines for key, record in json.loads(line).items()
    }
    stacks = [json.dumps({number_of[keys[0]]: lines}) + "\n" for keys, lines in step.stacks]
    (folder / "stack.jsonl").write_text("".join(stacks))
    return folder


@pytest.mark.parametrize("kills", [KILLS, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_captures_that_are_killed_hold_the_beginning_of_undisturbed_ones(
    tmp_path: Path, kills: int
) -> None:
    pytest.importorskip("torch")
    states, problems = kill_captures("mix", kills, SEED, tmp_path)
    assert states["kills"] + states["ended before its kill"] == kills
    assert problems == []


def test_the_undisturbed_step_is_right(whole: Path, tmp_path: Path) -> None:
    problems: list[str] = []
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    assert check_step(copy, read_step(whole), problems) == "dump.json"
    assert problems == []


@pytest.mark.parametrize("damage", ["changed", "lost", "left"])
def test_a_step_that_is_not_as_it_must_be_is_a_problem(
    whole: Path, tmp_path: Path, damage: str
) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    lines = (copy / "dump.json").read_bytes().split(b"\n")
    if damage == "changed":
        lines[2] = lines[2].replace(b'"shape": [', b'"shape": [7, ')
    elif damage == "lost":
        del lines[3]
    else:
        (copy / "dump.json.part").touch()
    (copy / "dump.json").write_bytes(b"\n".join(lines))
    problems: list[str] = []
    check_step(copy, read_step(whole), problems)
    assert problems


@pytest.mark.parametrize(("count", "torn"), [(1, b""), (3, b""), (20, b'{"Tensor.add')])
def test_a_log_of_the_first_records_is_read(
    whole: Path, tmp_path: Path, count: int, torn: bytes
) -> None:
    folder = killed(whole, tmp_path / "killed", count, torn)
    problems: list[str] = []
    state = check_step(folder, read_step(whole), problems)
    assert (state.startswith("dump.jsonl with"), problems) == (True, [])
