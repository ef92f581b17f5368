"""Places that a capture did not see, as its header tells them."""

import json
from pathlib import Path

import pytest

from ray_precheck.running.recorded import unseen_in
from ray_precheck.schema.view import NotCompared

pytestmark = pytest.mark.unit


def dump(folder: Path, name: str, **header: object) -> Path:
    path = folder / name
    path.write_text(json.dumps({"task": "tensor", **header, "data": {"dark": {"count": 9}}}))
    return path


def test_places_of_all_dumps_are_counted_and_named_once(tmp_path: Path) -> None:
    place = {"what": "a C++ call", "module": "Module.a", "place": "x.py:3"}
    first = dump(tmp_path, "a.json", dark={"count": 2, "places": [place, {"what": "b"}]})
    second = dump(tmp_path, "b.json", dark={"count": 1, "places": [place]})
    assert unseen_in([first, second]) == (
        NotCompared(
            "places that the capture did not see", 3, ("a C++ call, Module.a, x.py:3", "b")
        ),
    )


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"task": "tensor", "dark": {"count": 2, "pla')
    (tmp_path / "empty.json").touch()
    seen = dump(tmp_path, "a.json", dark={"count": 0, "places": []})
    assert unseen_in([seen, tmp_path / "torn.json", tmp_path / "empty.json", tmp_path / "no"]) == ()
