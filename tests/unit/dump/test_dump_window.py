"""Records of a large file, read through a window that moves."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.dump import scan
from ray_precheck.dump.scan import ByteRange, RecordWindow

pytestmark = pytest.mark.unit

DATA = bytes(33 + place % 90 for place in range(300)).replace(b",", b"x")


@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=20),
    window_bytes=st.sampled_from([1, 7, 50, 1000]),
)
@settings(max_examples=300, deadline=None)
def test_every_record_is_what_stands_in_its_span_in_any_order(
    spans: list[tuple[int, int]], window_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as file:
        patch.setattr(scan, "_WINDOW_BYTES", window_bytes)
        file.write(DATA)
        file.flush()
        records = RecordWindow(file.fileno())
        for start, length in spans:
            assert records.raw(ByteRange(start, start + length)) == DATA[start : start + length]


def test_blanks_and_the_comma_behind_a_record_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_bytes(b'{"a": {"n": NaN} ,\n "b": 1}')
    with path.open("rb") as file:
        assert RecordWindow(file.fileno()).raw(ByteRange(5, 20)) == b'{"n": NaN}'


def test_a_record_that_the_dump_does_not_have_is_none(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as file:
        assert RecordWindow(file.fileno()).raw(None) is None


@pytest.mark.parametrize("step", [1, -1])
def test_records_side_by_side_are_read_together_upwards_and_downwards(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, length: int, start: int) -> bytes:
        reads.append(length)
        return pread(descriptor, length, start)

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(scan, "_WINDOW_BYTES", 100)
    with tempfile.TemporaryFile() as file:
        file.write(DATA)
        file.flush()
        records = RecordWindow(file.fileno())
        for start in range(0, 300, 10)[::step]:
            records.raw(ByteRange(start, start + 10))
    assert len(reads) <= 4
    assert max(reads) <= 100
