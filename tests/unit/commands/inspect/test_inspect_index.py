"""The index of a dump names the same records as the dump itself, and outlives nothing that changes it."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.commands.inspect import index as index_module
from ray_precheck.commands.inspect.index import CaptureIndex, key_pattern, open_index
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit

_WORDS = st.sampled_from(["Torch.add", "Module.a.0.Linear", "Functional.x", "", "0", "ü", "a b"])
_NUMBERS = st.sampled_from(["0", "1", "12", "007", "²", "1" * 19, "x", ""])
_ENDS = st.sampled_from([".forward", ".backward", ".forward.0", ".parameters_grad", "", ".9"])
_KEYS = st.builds(lambda word, number, end: f"{word}.{number}{end}", _WORDS, _NUMBERS, _ENDS)


@given(_KEYS)
def test_a_key_is_its_pattern_and_its_number(key: str) -> None:
    pattern, number = key_pattern(key)
    assert pattern.key(number) == key


def opened(path: Path) -> CaptureIndex:
    with path.open("rb") as file:
        return open_index(path, file)


@settings(max_examples=60)
@given(st.lists(st.tuples(_KEYS, st.integers(0, 9)), min_size=1, max_size=30))
def test_the_index_has_the_records_that_the_other_commands_see(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("dump") / "dump.json"
    body = ", ".join(
        f"{json.dumps(key)}: {{{json.dumps('value')}: {value}}}" for key, value in records
    )
    path.write_text(f'{{"task": "statistics", "data": {{{body}}}}}', encoding="utf-8")
    found = opened(path)
    with open_side(path) as side:
        entries = [found.entry(row) for row in range(len(found))]
        assert [each.key for each in entries] == [each.key for each in side.entries]
        assert [side.record(each) for each in entries] == [
            side.record(each) for each in side.entries
        ]
        assert [found.row(each.key) for each in entries] == [*range(len(found))]


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dump whose index is kept, though it is small."""
    monkeypatch.setattr(index_module, "_WORTH_KEEPING_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "capture"
    folder.mkdir()
    path = folder / "dump.json"
    data = {f"Torch.add.{number}.forward": {"output": []} for number in range(5)}
    path.write_text(json.dumps({"task": "statistics", "data": data}))
    return path


def keys(index: CaptureIndex) -> list[str]:
    return [index.key(row) for row in range(len(index))]


def test_the_index_is_kept_beside_the_dump_and_read_from_there(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keys(opened(dump))
    assert (dump.parent / "dump.json.index").is_file()
    monkeypatch.setattr(index_module, "scan_dump", None)  # a second scan would fail
    assert keys(opened(dump)) == first


def test_a_changed_dump_gets_another_index(dump: Path) -> None:
    opened(dump)
    dump.write_text('{"task": "statistics", "data": {"Torch.mul.0.forward": {}}}')
    assert keys(opened(dump)) == ["Torch.mul.0.forward"]


def test_the_index_is_in_the_cache_where_the_folder_cannot_be_written(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = index_module._keep

    def refused(place: Path, *rest: object) -> bool:
        return place.parent != dump.parent and keep(place, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(index_module, "_keep", refused)
    first = keys(opened(dump))
    assert [each.name for each in dump.parent.iterdir()] == ["dump.json"]
    assert len([*(tmp_path / "cache").rglob("*")]) == 3
    monkeypatch.setattr(index_module, "scan_dump", None)
    assert keys(opened(dump)) == first


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_broken_index_is_made_anew(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(index_module, "_WORTH_KEEPING_BYTES", 0)
    path = tmp_path_factory.mktemp("dump") / "dump.json"
    path.write_text(
        json.dumps({"data": {f"Torch.add.{number}.forward": {"output": []} for number in range(3)}})
    )
    whole = keys(opened(path))
    kept = path.with_name("dump.json.index")
    content = bytearray(kept.read_bytes())
    cut = data.draw(st.integers(0, len(content)))
    if data.draw(st.booleans()):
        content = content[:cut]
    else:
        content[min(cut, len(content) - 1)] ^= data.draw(st.integers(1, 255))
    kept.write_bytes(content)
    found = opened(path)
    # A number of a call may be changed unseen; nothing else may, and every record can be asked for.
    assert len(found) == len(whole)
    for row in range(len(found)):
        entry = found.entry(row)
        assert 0 <= entry.span.start <= os.stat(path).st_size
    patch.undo()
