"""Which dumps a path names: a file, a rank, a step of ranks, all steps."""

from pathlib import Path

import pytest

from ray_precheck.dump.folders import find_dumps
from ray_precheck.errors import DumpError

pytestmark = pytest.mark.unit


def made(root: Path, *places: str) -> Path:
    """A folder with an empty dump.json at each of these places below it."""
    for place in places:
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dump.json").touch()
    return root


def places(path: Path) -> list[str]:
    """Where the results of the dumps go, in their order."""
    return [found.place.as_posix() for found in find_dumps(path).dumps]


def test_a_file_is_itself_there_or_not(tmp_path: Path) -> None:
    for path in (made(tmp_path, ".") / "dump.json", tmp_path / "none.json"):
        found = find_dumps(path)
        assert ([each.path for each in found.dumps], found.is_many) == ([path], False)


def test_a_folder_with_a_dump_is_that_dump(tmp_path: Path) -> None:
    found = find_dumps(made(tmp_path, ".", "rank0"))
    assert [each.path for each in found.dumps] == [tmp_path / "dump.json"]
    assert not found.is_many


@pytest.mark.parametrize("name", ["rank", "rank0", "proc4711"])
def test_a_step_has_ranks_or_processes(tmp_path: Path, name: str) -> None:
    found = find_dumps(made(tmp_path, f"step3/{name}") / "step3")
    assert found.is_many
    assert [each.path for each in found.dumps] == [tmp_path / "step3" / name / "dump.json"]
    assert [(each.step, each.rank) for each in found.dumps] == [("step3", name)]


def test_a_step_is_known_by_its_name_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "step3/rank0")
    monkeypatch.chdir(tmp_path / "step3")
    assert places(Path(".")) == ["step3/rank0"]


def test_ranks_below_a_folder_of_another_name_have_no_step(tmp_path: Path) -> None:
    assert places(made(tmp_path / "mine", "rank1", "rank0")) == ["rank0", "rank1"]


def test_all_steps_come_by_their_numbers(tmp_path: Path) -> None:
    made(tmp_path, "step10/rank0", "step2/rank10", "step2/rank9", "step2/proc1", "step3")
    assert places(tmp_path) == [
        "step2/proc1",
        "step2/rank9",
        "step2/rank10",
        "step3",
        "step10/rank0",
    ]


def test_other_folders_and_files_are_left_alone(tmp_path: Path) -> None:
    made(tmp_path, "step0/rank0", "step0/ranks", "step0/rank0/rank1", "old/step1/rank0", "steps")
    (tmp_path / "step7").touch()
    assert places(tmp_path) == ["step0/rank0"]


def test_ranks_without_a_dump_are_told(tmp_path: Path) -> None:
    made(tmp_path, "step0/rank0")
    (tmp_path / "step0" / "rank1").mkdir()
    (tmp_path / "step1").mkdir()
    assert find_dumps(tmp_path).without == (tmp_path / "step0" / "rank1", tmp_path / "step1")


@pytest.mark.parametrize("empty", [".", "step0", "rank0", "step0/rank0", "other"])
def test_a_folder_without_a_dump_says_what_was_looked_for(tmp_path: Path, empty: str) -> None:
    (tmp_path / empty).mkdir(parents=True, exist_ok=True)
    with pytest.raises(DumpError) as error:
        find_dumps(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no dump; looked for dump.json and dump.jsonl in it, in rank*, proc*, step*, and in"
        " step*/rank* and step*/proc*"
    )


def test_the_label_is_for_people(tmp_path: Path) -> None:
    made(tmp_path, "step0/rank0")
    assert [each.label for each in find_dumps(tmp_path).dumps] == ["step0/rank0"]
    assert [each.label for each in find_dumps(tmp_path / "step0/rank0").dumps] == ["dump.json"]


def test_a_rank_without_a_number_comes_first(tmp_path: Path) -> None:
    assert places(made(tmp_path, "rank0", "rank1", "rank")) == ["rank", "rank0", "rank1"]


def test_a_path_that_cannot_be_read_says_why() -> None:
    with pytest.raises(DumpError) as error:
        find_dumps(Path("x" * 300))
    assert str(error.value) == f"cannot read the dump '{'x' * 300}': File name too long"
