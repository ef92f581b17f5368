"""A capture of another tool is read once, into the user's cache, and is a dump from then on."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ray_precheck.errors import DumpError
from ray_precheck.formats import conversion
from ray_precheck.formats.conversion import (
    CaptureWriter,
    Format,
    as_our_dump,
    find_captures,
    find_dumps_to_run,
)
from ray_precheck.trace.flow import FlowRecord, flow_of
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A format whose captures are folders with a file `mark`; returns the captures that were read."""
    read: list[Path] = []

    def is_here(path: Path, names: Sequence[str]) -> bool:
        return "mark" in names

    def convert(path: Path, out: CaptureWriter) -> None:
        read.append(path)
        if (text := (path / "mark").read_text()) == "bad":
            raise DumpError("mark is bad")
        out.framework = "toy"
        given = out.kept(VALUES, variable="1")
        made = out.kept(VALUES + float(text), variable="2")
        # As in programs: another tensor has the same values as the one that is used next.
        out.record("Toy.first.0.forward", {"input_args": [], "input_kwargs": {}, "output": [given]})
        out.record("Toy.copy.0.forward", {"input_args": [], "output": [{**given, "variable": "3"}]})
        value = {"input_args": [given], "input_kwargs": {}, "output": [made]}
        out.record("Toy.add.0.forward", value, module="Module.net.Net.forward.0", stack=["a line"])
        out.notes.append("one thing is left out")

    module = ModuleType("ray_precheck.formats.toy")
    module.FORMAT = Format("Toy", is_here, convert)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(conversion, "_FORMATS", ("toy",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return read


def capture(folder: Path, text: str = "1") -> Path:
    folder.mkdir()
    (folder / "mark").write_text(text)
    return folder


def test_it_is_read_once_and_again_when_it_changes(
    tmp_path: Path, reads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture(tmp_path / "theirs")
    first = as_our_dump(path)
    assert "one thing is left out" in capsys.readouterr().err
    assert (as_our_dump(path), len(reads)) == (first, 1)
    (path / "mark").write_text("25")
    assert as_our_dump(path) != first
    assert len(reads) == 2
    assert [each.name for each in path.iterdir()] == ["mark"]


def test_its_records_stacks_modules_and_tensors_are_those_of_a_dump(
    tmp_path: Path, reads: list[Path]
) -> None:
    (dump,) = find_captures(capture(tmp_path / "theirs")).dumps
    with open_side(dump.path) as side:
        assert side.header.framework == "toy"
        first, _, add = side.entries
        assert side.modules[add.key] == "Module.net.Net.forward.0"
        assert side.stacks[add.key] == ["a line"]
        given, made = side.items(add)
        assert (made.dtype, made.shape, made.ends) == ("float32", (2, 3), (6.0, 1.0))
        assert np.load(side.data_folder / made.file).tolist() == (VALUES + 1).tolist()
        flow = flow_of(FlowRecord(entry, side.items(entry)) for entry in side.entries)
        producer = flow.producer(add.key, given.path)
        assert producer is not None
        assert producer.key == first.key


def test_what_cannot_be_read_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, reads: list[Path]
) -> None:
    path = capture(tmp_path / "theirs", "bad")
    with pytest.raises(DumpError, match=rf"^cannot read {path} as Toy: mark is bad$"):
        as_our_dump(path)
    assert list((tmp_path / "cache/ray_precheck/captures").iterdir()) == []


def test_what_would_run_its_calls_says_who_reads_it(tmp_path: Path, reads: list[Path]) -> None:
    path = capture(tmp_path / "theirs")
    with pytest.raises(
        DumpError, match=r"theirs is a capture of another tool \(Toy\), whose calls"
    ):
        find_dumps_to_run(path)
    with pytest.raises(DumpError, match="holds no dump"):
        find_dumps_to_run(tmp_path)
    (path / "dump.json").write_text("{}")
    assert find_dumps_to_run(path).dumps[0].path == path / "dump.json"


def test_dumps_of_ours_and_what_is_not_there_stay_as_they_are(
    tmp_path: Path, reads: list[Path]
) -> None:
    ours = capture(tmp_path / "ours")
    (ours / "dump.json").write_text("{}")
    for path in (ours, ours / "dump.json", tmp_path / "missing", tmp_path / "x.json"):
        assert as_our_dump(path) == path
    assert reads == []


def test_what_nobody_has_named_for_a_month_is_removed(tmp_path: Path, reads: list[Path]) -> None:
    old, used = (as_our_dump(capture(tmp_path / name)) for name in ("a", "b"))
    then = time.time() - 31 * 24 * 3600
    for folder in (old, used):
        os.utime(folder, (then, then))
    as_our_dump(tmp_path / "b")
    as_our_dump(capture(tmp_path / "c"))
    assert (old.exists(), used.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs" / "mark"))
    dump = as_our_dump(capture(tmp_path / "theirs"))
    assert (dump / "dump.json").exists()
    assert not dump.is_relative_to(tmp_path / "theirs")
