"""The log of a capture that was cut off, read as the dump that it would have become."""

import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.dump import log as log_module
from ray_precheck.dump.folders import KILLED, find_dumps
from ray_precheck.dump.log import as_dump
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import DumpError, NothingToCheckError
from ray_precheck.replay.selection import Selection, select_calls

pytestmark = pytest.mark.unit

HEADER = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
RECORDS: dict[str, Any] = {
    "Torch.mul.0.forward": {"n": 1, "stack": 0},
    "Tensor.__add__.0.forward": {"n": float("nan"), "text": '}\\n{"a": {'},
    "Torch.add.0.forward": {"n": [3, {"x": {}}], "parent": "Module.a.forward.0"},
    "Torch.add.0.backward": {"n": 4},
    "Torch.mul.0.backward": {},
}


def line_of(key: str, record: object) -> bytes:
    return json.dumps({key: record}).encode() + b"\n"


HEADER_LINE = json.dumps(HEADER).encode() + b"\n"
LINES = [line_of(key, record) for key, record in RECORDS.items()]


def logged(folder: Path, *lines: bytes, header: bytes = HEADER_LINE) -> Path:
    path = folder / "dump.jsonl"
    path.write_bytes(header + b"".join(lines))
    return path


def finished(folder: Path, lines: list[bytes]) -> Path:
    """The dump.json that a log with these lines becomes, in a folder of its own."""
    folder.mkdir()
    path = folder / "dump.json"
    path.write_bytes(b"".join(as_dump(HEADER_LINE, lines, KILLED)))
    return path


def records(dump: Dump) -> list[tuple[str, bytes | None, bytes | None]]:
    return [(call.name, dump.raw(call.forward), dump.raw(call.backward)) for call in dump.calls]


def refused(path: Path) -> str:
    with pytest.raises(DumpError) as error:
        open_dump(path)
    return str(error.value)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 4096])
def test_a_log_reads_as_the_dump_that_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    whole = finished(tmp_path / "whole", LINES)
    assert json.loads(whole.read_bytes())["data"].keys() == RECORDS.keys()
    monkeypatch.setattr(log_module, "CHUNK_BYTES", chunk_bytes)
    if chunk_bytes >= 64:
        with open_dump(logged(tmp_path, *LINES)) as dump, open_dump(whole) as expected:
            assert records(dump) == records(expected)
            assert (dump.task, dump.framework) == (expected.task, expected.framework)
            assert dump.digest() == expected.digest()
            assert dump.digest() == hashlib.sha256(whole.read_bytes()).hexdigest()
    joined = b"".join(LINES)
    cut = [joined[at : at + chunk_bytes] for at in range(0, len(joined), chunk_bytes)]
    assert b"".join(as_dump(HEADER_LINE, cut, KILLED)) == whole.read_bytes()


def test_a_line_longer_than_a_chunk_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "CHUNK_BYTES", 64)
    long = line_of("Torch.cat.0.forward", {"n": "x" * 1000})
    path = logged(tmp_path, LINES[0], long, LINES[3], long[:-1])
    with open_dump(path) as dump:
        assert records(dump)[1] == ("Torch.cat.0", b'{"n": "%b"}' % (b"x" * 1000), None)
        assert dump.log is not None
        assert dump.log.records == 3


def test_a_log_that_ends_anywhere_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    joined = b"".join(LINES)
    ends = [sum(map(len, LINES[:count])) for count in range(len(LINES) + 1)]
    for cut in range(ends[1], len(joined) + 1):
        count = max(number for number, end in enumerate(ends) if end <= cut)
        with open_dump(logged(tmp_path, joined[:cut])) as dump:
            assert sum((c.forward is not None) + (c.backward is not None) for c in dump.calls) == (
                count
            )
            assert f"was cut off after {count} records" in dump.note


@pytest.mark.parametrize("end", [b"\0" * 100, b'{"Torch.x', b'{"Torch.x.0.forward": {}}'])
def test_what_stands_behind_the_last_line_break_is_not_looked_at(
    tmp_path: Path, end: bytes
) -> None:
    with open_dump(logged(tmp_path, *LINES)) as dump:
        expected = records(dump), dump.digest()
    with open_dump(logged(tmp_path, *LINES, end)) as dump:
        assert (records(dump), dump.digest()) == expected


@pytest.mark.parametrize("begin", [b"", b'{"task"', b"\0\0\0", HEADER_LINE[:-1], HEADER_LINE])
def test_a_log_without_a_call_says_so(tmp_path: Path, begin: bytes) -> None:
    with pytest.raises(NothingToCheckError, match="holds no call: the capture was cut off"):
        open_dump(logged(tmp_path, header=begin))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\n", "b''"),
        (b"[1]\n", "b'[1]'"),
        (b'{"a": 1}\n', "b'{\"a\": 1}'"),
        (b'{"a": {}\n', "b'{\"a\": {}'"),
        (b"\0\0\n", r"b'\x00\x00'"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, shown: str) -> None:
    path = logged(tmp_path, *LINES[:2], line, LINES[2])
    offset = len(HEADER_LINE + b"".join(LINES[:2]))
    assert refused(path).startswith(f"line 4 of {path} (byte {offset}) is {shown}, expected is one")


def test_a_file_of_another_kind_is_no_log(tmp_path: Path) -> None:
    assert "is no log of a capture: it begins with b'PK" in refused(
        logged(tmp_path, header=b"PK\x03\x04")
    )
    assert "name it dump.json" in refused(logged(tmp_path, header=b'{"data": {}}\n'))


def test_more_records_than_a_file_can_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "member_limit", lambda size: 4)
    assert "has more than 4 members" in refused(logged(tmp_path, *LINES))


def test_keys_are_texts_of_json(tmp_path: Path) -> None:
    keys = ['Torch.a": {b.0.forward', "Torch.\\.0.forward", "Torch.é\udc80.0.forward"]
    lines = [line_of(key, {"n": number}) for number, key in enumerate(keys)]
    with open_dump(logged(tmp_path, *lines)) as dump:
        assert [call.name for call in dump.calls] == [key.removesuffix(".forward") for key in keys]
        assert [dump.raw(call.forward) for call in dump.calls] == [
            b'{"n": %d}' % n for n in range(3)
        ]


def test_of_a_record_that_stands_twice_in_a_log_the_first_counts(tmp_path: Path) -> None:
    again = line_of("Torch.mul.0.forward", {"n": 100})
    with open_dump(logged(tmp_path, *LINES, again)) as dump:
        assert dump.raw(dump.calls[0].forward) == b'{"n": 1, "stack": 0}'


def test_a_dump_that_is_not_there_stands_for_the_log_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    path = logged(tmp_path, *LINES)
    with open_dump(tmp_path / "dump.json") as dump:
        assert dump.path == path
        assert dump.note
    whole = tmp_path / "dump.json"
    path.rename(whole)
    whole.write_bytes(b"".join(as_dump(HEADER_LINE, LINES)))
    with open_dump(path) as dump:
        assert (dump.path, dump.note) == (whole, "")
    logged(tmp_path, *LINES)
    with open_dump(whole) as dump:
        assert dump.path == whole
    assert [found.path for found in find_dumps(tmp_path).dumps] == [whole]


def test_a_log_in_a_folder_of_ranks_is_found(tmp_path: Path) -> None:
    for place in ("step0/rank0", "step0/rank1", "step1"):
        (tmp_path / place).mkdir(parents=True)
    logged(tmp_path / "step0/rank1", *LINES)
    finished(tmp_path / "step0/rank2", LINES)
    logged(tmp_path / "step1", *LINES)
    found = find_dumps(tmp_path)
    assert [each.path.relative_to(tmp_path).as_posix() for each in found.dumps] == [
        "step0/rank1/dump.jsonl",
        "step0/rank2/dump.json",
        "step1/dump.jsonl",
    ]
    assert found.dumps[0].place.as_posix() == "step0/rank1"
    assert found.without == (tmp_path / "step0/rank0",)
    one = find_dumps(tmp_path / "step0/rank1/dump.json")
    assert [each.path.name for each in one.dumps] == ["dump.jsonl"]


def test_tensors_lie_beside_a_log_or_where_its_header_says(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    header = json.dumps(HEADER | {"task": "tensor", "dump_data_dir": str(elsewhere)}) + "\n"
    path = logged(tmp_path, *LINES, header=header.encode())
    with open_dump(path) as dump:
        assert (dump.task, dump.data_folder) == ("tensor", elsewhere)
    (tmp_path / "dump_tensor_data").mkdir()
    with open_dump(path) as dump:
        assert dump.data_folder == tmp_path / "dump_tensor_data"


def test_the_note_is_one_sentence_of_the_run(tmp_path: Path) -> None:
    path = logged(tmp_path, *LINES)
    with open_dump(path) as dump:
        (note,) = select_calls(dump, Selection(), None)
    assert note == (
        f"{path} is the log of a capture that was cut off after 5 records; `ray-precheck capture"
        f" --finish {tmp_path}` makes a dump.json of it"
    )
    with path.open() as writer, open_dump(path) as dump:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert dump.note == (
            f"{path} is the log of a capture that is still being written; read up to record 5"
        )


def test_a_log_that_grows_keeps_the_digest_of_what_was_read(tmp_path: Path) -> None:
    path = logged(tmp_path, *LINES[:3])
    with open_dump(path) as dump:
        before = dump.digest()
        with path.open("ab") as file:
            file.write(b"".join(LINES[3:]))
        assert dump.digest() == before
    with open_dump(path) as dump:
        assert dump.digest() != before
