"""Spans of the members of a large JSON object, found without decoding it."""

import codecs
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ray_precheck.dump import scan
from ray_precheck.dump.scan import Member, read_value, scan_dump
from ray_precheck.errors import DumpError

pytestmark = pytest.mark.unit

Pairs = list[tuple[str, Any]]
CHUNKS = st.sampled_from([1, 2, 7, 31, 4096])
# What breaks scanners of JSON: quotes, backslashes, brackets and colons inside of strings.
TEXTS = st.one_of(
    st.text(alphabet='\\"{}[]:,/ab\n\t', max_size=8),
    st.text(max_size=5),
    st.sampled_from(["\\", '"', '\\"', '\\\\"', "\\" * 9, "\u2028", "\U0001f600", "\x00", "data"]),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.sampled_from([[], {}])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
HEADERS = st.dictionaries(TEXTS.filter(lambda key: key != "data"), VALUES, max_size=3)
RECORDS = st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4)
BLANKS = st.text(alphabet=" \t\r\n", max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, Pairs, Pairs]:
    """Draw a dump as bytes, in any style of JSON, with the members that it has."""
    header, records = draw(HEADERS), draw(RECORDS)
    place = draw(st.integers(0, len(header)))
    pairs = list(header.items())
    pairs.insert(place, ("data", records))
    style = {
        "ensure_ascii": draw(st.booleans()),
        "indent": draw(st.sampled_from([None, 0, 2, "\t"])),
        "separators": draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n", " :\t")])),
    }
    text = json.dumps(dict(pairs), **style)
    text = draw(BLANKS) + text + draw(BLANKS)
    start = draw(st.sampled_from([b"", codecs.BOM_UTF8]))
    return start + text.encode("utf-8"), pairs, list(records.items())


def scanned(raw: bytes, chunk_bytes: int) -> tuple[Pairs, Pairs]:
    """Return the decoded members of header and data, read in chunks of this size."""
    file = io.BytesIO(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", chunk_bytes)
        header, data = scan_dump(file, "dump.json")
    return decoded(file, header), decoded(file, data)


def members_or_refusal(raw: bytes, chunk_bytes: int) -> list[bytes] | str:
    """Return the raw values of all members, or the text of the error."""
    file = io.BytesIO(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "CHUNK_BYTES", chunk_bytes)
        try:
            header, data = scan_dump(file, "dump.json")
        except DumpError as error:
            return str(error)
        return [read_value(file, span) for _, span in [*header, *data]]


def decoded(file: io.BytesIO, members: Iterable[Member]) -> Pairs:
    return [(key, json.loads(read_value(file, span))) for key, span in members]


def alike(found: Pairs, expected: Pairs) -> bool:
    """Compare with NaN equal to NaN, and the order of the members."""
    return json.dumps(found) == json.dumps(expected)


@settings(deadline=None, max_examples=120)
@given(documents(), CHUNKS)
def test_members_of_header_and_data_are_found_in_any_style_and_chunk_size(
    document: tuple[bytes, Pairs, Pairs], chunk_bytes: int
) -> None:
    raw, header, records = document
    found_header, found_records = scanned(raw, chunk_bytes)
    assert alike(found_header, header)
    assert alike(found_records, records)


@settings(deadline=None, max_examples=80)
@given(documents(), CHUNKS, st.data())
def test_a_file_cut_at_any_byte_is_an_error_or_still_whole(
    document: tuple[bytes, Pairs, Pairs], chunk_bytes: int, data: st.DataObject
) -> None:
    raw, header, records = document
    cut = data.draw(st.integers(0, len(raw) - 1), label="cut")
    whole = raw[cut:].strip() == b""
    found = members_or_refusal(raw[:cut], chunk_bytes)
    if isinstance(found, str):
        assert not whole
        assert "dump.json is " in found
    else:
        assert whole
        values = [value for _, value in [*header, *records]]
        assert json.dumps([json.loads(value) for value in found]) == json.dumps(values)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
def test_every_cut_of_a_dump_is_told_from_the_whole(chunk_bytes: int) -> None:
    raw = b'{"task": "st\\"at\\\\", "data": {"A.b.0.forward": {"x": [NaN, "}\\\\"]}}}'
    assert [key for key, _ in scanned(raw, chunk_bytes)[1]] == ["A.b.0.forward"]
    for cut in range(len(raw)):
        with pytest.raises(DumpError):
            scanned(raw[:cut], chunk_bytes)


SOUP = st.text(alphabet='{}[]":,\\a1 ', max_size=40)


@settings(deadline=None, max_examples=200)
@given(SOUP, CHUNKS)
@example("{}", 7)
@example('{"data": {}}', 7)
@example('{{"data": {"a": 1 : 2}', 7)
def test_what_is_no_json_is_an_error_or_some_members_and_never_another_exception(
    soup: str, chunk_bytes: int
) -> None:
    found = members_or_refusal(soup.encode(), chunk_bytes)
    assert isinstance(found, list) or "dump.json" in found


@settings(deadline=None, max_examples=80)
@given(documents(), st.integers(0), st.integers(0, 255))
@example((b'{"data": {"k": 1}}', [], []), 13, ord(";"))
def test_a_dump_with_one_foreign_byte_is_an_error_or_some_members(
    document: tuple[bytes, Pairs, Pairs], place: int, byte: int
) -> None:
    raw = bytearray(document[0])
    raw[place % len(raw)] = byte
    found = members_or_refusal(bytes(raw), 64)
    assert isinstance(found, list) or "dump.json" in found


@pytest.mark.parametrize(
    ("raw", "header"), [(b"{}", []), (b'{"data": {}}', ["data"]), (b'{"data":{} }', ["data"])]
)
def test_an_object_without_members_has_none(raw: bytes, header: list[str]) -> None:
    found, data = scan_dump(io.BytesIO(raw), "dump.json")
    assert [key for key, _ in found] == header
    assert list(data) == []


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 4096])
@pytest.mark.parametrize("slashes", range(1, 6))
def test_a_quote_is_escaped_by_an_odd_number_of_backslashes(slashes: int, chunk_bytes: int) -> None:
    value = "\\" * slashes + '"}]'
    raw = json.dumps({"data": {value: [value, {value: value}]}}).encode()
    assert scanned(raw, chunk_bytes)[1] == [(value, [value, {value: value}])]


def test_bare_nan_and_infinity_are_left_as_they_are() -> None:
    raw = b'{"data": {"a": {"Max": NaN, "Min": -Infinity}, "b": Infinity , "c": nan}}'
    file = io.BytesIO(raw)
    _, data = scan_dump(file, "dump.json")
    assert [read_value(file, span) for _, span in data] == [
        b'{"Max": NaN, "Min": -Infinity}',
        b"Infinity",
        b"nan",
    ]


def test_a_value_is_read_without_blanks_and_comma_around_it() -> None:
    raw = b'{ "task" :\r\n "a,b" ,\n "data"\t: { "k" : [1 , 2] ,"l":3} , "level": "L1" }\n'
    file = io.BytesIO(raw)
    header, data = scan_dump(file, "dump.json")
    assert [read_value(file, span) for _, span in header] == [
        b'"a,b"',
        b'{ "k" : [1 , 2] ,"l":3}',
        b'"L1"',
    ]
    assert [read_value(file, span) for _, span in data] == [b"[1 , 2]", b"3"]


def test_of_two_data_objects_the_last_counts_as_in_every_json_parser() -> None:
    raw = b'{"data": {"old": 1}, "x": {"data": {"inner": 1}}, "data": {"new": 2}, "y": 0}'
    header, data = scanned(raw, 7)
    assert [key for key, _ in header] == ["data", "x", "data", "y"]
    assert data == [("new", 2)]


def test_the_same_key_twice_gives_two_members_in_file_order() -> None:
    assert scanned(b'{"data": {"k": 1, "k": 2}}', 7)[1] == [("k", 1), ("k", 2)]


@pytest.mark.parametrize("value", [b"null", b"3", b'"text"', b"[]", b'[{"a": 1}]', b"[1, 2]"])
def test_data_that_is_no_object_has_no_members(value: bytes) -> None:
    header, data = scanned(b'{"task": "tensor", "data": ' + value + b"}", 7)
    assert [key for key, _ in header] == ["task", "data"]
    assert data == []


def test_without_data_there_are_header_members_only() -> None:
    assert scanned(b'{"task": 1, "dat\\u0061x": {"k": 1}}', 7) == (
        [("task", 1), ("datax", {"k": 1})],
        [],
    )


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_with_a_byte_order_mark_is_named(encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    raw = mark + '{"data": {"a": 1}}'.encode(encoding)
    with pytest.raises(DumpError, match="UTF-16"):
        scan_dump(io.BytesIO(raw), "dump.json")


@pytest.mark.parametrize(
    "raw",
    [b"", b" \n", codecs.BOM_UTF8, b"[]", b'[{"data": {}}]', b'"data"', b"5", b"PK\x03\x04", b"-"],
)
def test_what_is_no_object_is_not_a_dump(raw: bytes) -> None:
    with pytest.raises(DumpError, match="is not a dump: a JSON object is expected"):
        scan_dump(io.BytesIO(raw), "dump.json")


def test_a_closing_bracket_too_many_is_named() -> None:
    with pytest.raises(DumpError, match="a bracket too many"):
        scan_dump(io.BytesIO(b'{"data": {"a": 1}}}'), "dump.json")


def test_a_key_that_is_no_utf_8_is_kept_readable() -> None:
    file = io.BytesIO(b'{"data": {"caf\xe9": 1}}')
    data = list(scan_dump(file, "dump.json")[1])
    assert [key for key, _ in data] == ["caf\ufffd"]
    assert read_value(file, data[0][1]) == b"1"


def test_spans_are_positions_in_the_file_also_behind_a_byte_order_mark() -> None:
    raw = codecs.BOM_UTF8 + b'{"data": {"k": [7]}}'
    data = list(scan_dump(io.BytesIO(raw), "dump.json")[1])
    _, span = data[0]
    assert raw[span.start : span.end].strip().startswith(b"[7]")


LONG_BLANKS = b" " * 70_000  # more than is looked at first


def test_blanks_may_stand_before_the_object_as_long_as_they_like() -> None:
    assert scanned(LONG_BLANKS + b'{"data": {"k": 1}}', 4096)[1] == [("k", 1)]


@pytest.mark.parametrize(
    "raw", [LONG_BLANKS, LONG_BLANKS + b'"a": {}', b"[" + b"1, " * 30_000 + b"1]"]
)
def test_a_long_file_without_an_object_is_not_a_dump(raw: bytes) -> None:
    with pytest.raises(DumpError, match="is not a dump: a JSON object is expected"):
        scan_dump(io.BytesIO(raw), "dump.json")


# A limit of one member is one of eight characters of structure: quotes in a list of strings count.
@pytest.mark.parametrize(
    ("raw", "is_refused"),
    [
        (b'{"a": [:]}', False),
        (b'{"a": ["b"]}', True),
        (b'{"a": 1, "b": 1}', True),
        (b'{"a":' + b'{"b": [{"c": 1}, ' * 9 + b"1" + b"]}" * 9 + b"}", True),
    ],
)
def test_a_file_may_have_as_many_members_as_its_size_allows(
    raw: bytes, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SURE_MEMBERS", 1)
    found = members_or_refusal(raw, 4096)
    assert isinstance(found, str) is is_refused
    assert ("dump.json has more than 1 members" in found) is is_refused


def test_what_is_nested_deeper_than_records_is_no_member_in_chunks_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "SURE_MEMBERS", 2)
    raw = b'{"data": {"k": ' + b'{"a": [{"b": 1}, ' * 9 + b"1" + b"]}" * 9 + b"}}"
    for chunk_bytes in (1, 7, 4096):
        found = members_or_refusal(raw, chunk_bytes)
        assert isinstance(found, list)
        assert len(found) == 2


@pytest.mark.parametrize(
    ("length", "shown"), [(298, "a" * 298), (299, f"{'a' * 199}... (301 bytes at byte 24)")]
)
def test_a_key_beyond_the_longest_is_shown_by_its_begin(
    length: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "LONGEST_KEY_BYTES", 300)
    raw = f'{{"data": {{"k\\u0061": 1, "{"a" * length}": 2}}}}'.encode()
    data = list(scan_dump(io.BytesIO(raw), "dump.json")[1])
    assert [key for key, _ in data] == ["ka", shown]


class CountingFile(io.FileIO):
    """A file that counts what is read of it."""

    reads, read_bytes = 0, 0

    def readinto(self, buffer: Any, /) -> int | None:
        found = super().readinto(buffer)
        self.reads += 1
        self.read_bytes += found or 0
        return found


def test_keys_are_cut_from_pieces_of_the_file_that_are_read_once(tmp_path: Path) -> None:
    names = [f"A.{number}\n" for number in range(20_000)]  # escaped, so each is decoded by itself
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"data": dict.fromkeys(names, "x" * 40)}))
    size = path.stat().st_size
    file = CountingFile(path)
    with io.BufferedReader(file) as buffered:
        data = scan_dump(buffered, "dump.json")[1]
        assert [key for key, _ in data] == names
    # Once for the structure, twice for the keys, and both ends; a piece is the buffer of an open file.
    assert file.read_bytes < 3.5 * size
    assert file.reads < 3 * size / io.DEFAULT_BUFFER_SIZE + 20
