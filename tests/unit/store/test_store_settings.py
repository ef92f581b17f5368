"""What the settings file holds besides the fingerprint: where the run ran."""

import json
from pathlib import Path

import pytest

from ray_precheck.schema.environment import (
    Environment,
    environment_from_dict,
    environment_to_dict,
)
from ray_precheck.store.settings import (
    RunSettings,
    load_settings,
    mark_completed,
    note_environment,
    save_settings,
)

pytestmark = pytest.mark.unit

THERE = Environment(
    framework="pytorch",
    kind="gpu",
    device_names=("NVIDIA H200",),
    devices=8,
    nodes=1,
    rule="auto",
    calls=125,
    dump="/d/dump.json",
    tests_dump=True,
    versions={"torch": "2.13.0"},
)


def test_an_environment_is_read_back_and_kept_when_the_run_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save_settings(path, RunSettings({"seed": "0"}))
    note_environment(path, environment_to_dict(THERE))
    for name in ("result", "details"):
        (tmp_path / name).write_text(name)
    mark_completed(path, tmp_path / "result", tmp_path / "details")
    found = load_settings(path)
    assert found is not None
    assert environment_from_dict(found.environment) == THERE
    assert (found.fingerprint, found.completed) == ({"seed": "0"}, (6, 7))


def test_a_file_of_an_older_version_has_no_environment(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"seed": "0"}')
    found = load_settings(path)
    assert found is not None
    assert environment_from_dict(found.environment) == Environment()


def test_without_a_file_none_is_made(tmp_path: Path) -> None:
    note_environment(tmp_path / "run.json", environment_to_dict(THERE))
    assert list(tmp_path.iterdir()) == []


def test_what_is_of_another_type_is_left_empty() -> None:
    odd = {"device kind": 3, "device count": "8", "device names": "x", "versions": [], "x": 1}
    assert environment_from_dict(odd) == Environment()


def test_no_key_is_one_of_the_fingerprint_which_a_torn_file_is_searched_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.json"
    fingerprint = {"framework": "mindspore", "standard": "file 1", "dump": "d1", "seed": "0"}
    save_settings(path, RunSettings(fingerprint))
    note_environment(path, environment_to_dict(THERE))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(path.read_bytes())
    found = load_settings(path)
    assert found is not None
    assert fingerprint.items() <= found.fingerprint.items()


@pytest.mark.parametrize(
    ("sizes", "completed"),
    [({}, (-1, -1)), ({"result_bytes": 5}, (5, -1)), ({"details_bytes": 6}, (-1, 6)), (3, None)],
)
def test_a_size_that_is_missing_is_that_of_no_file(
    tmp_path: Path, sizes: object, completed: tuple[int, int] | None
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"seed": "0", "completed": sizes}))
    found = load_settings(path)
    assert found is not None
    assert found.completed == completed
