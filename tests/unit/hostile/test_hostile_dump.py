"""Files that are meant to break the driver: refused in one sentence, or rows; quick and small."""

import codecs
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from growth import AT_MOST, TIMES, Action, growth
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ray_precheck.dump import parse, scan
from ray_precheck.dump.parse import open_dump
from ray_precheck.dump.scan import LONGEST_NAME, ApiKey, parse_key, split_key
from ray_precheck.errors import DumpError
from ray_precheck.replay import planner as cost
from ray_precheck.replay.planner import plan_tasks
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

MIB = 1 << 20
RECORD = {
    "input_args": [
        {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.5, "Min": -1.5}
    ],
    "input_kwargs": {"dim": {"type": "int", "value": 1}, "path": {"type": "str", "value": 'a\\"'}},
    "output": [],
}
GOOD = {"task": "statistics", "framework": "pytorch", "data": {"Torch.add.0.forward": RECORD}}


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "dump.json"
    path.write_bytes(raw)
    return path


def dump_of(folder: Path, data: Any, **header: Any) -> Path:
    return written(folder, json.dumps({**GOOD, **header, "data": data}).encode())


def refused(path: Path) -> str:
    """Return why a file is no dump: one sentence that can be printed, however long its texts."""
    with pytest.raises(DumpError) as error:
        open_dump(path)
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 1000 + len(str(path))
    return text


def skips(path: Path, framework: str = "pytorch") -> dict[str, str]:
    """Return the reason of each call that is not planned, by its name."""
    with open_dump(path) as dump:
        return {skip.name: skip.message for skip in plan_tasks(dump, framework, set()).skipped}


def peak_mib(action: Callable[[], Any]) -> float:
    """Return the most memory that an action holds at a time."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


class TestGigabytes:
    def test_a_gigabyte_that_ends_in_the_middle_is_refused_by_its_end(self, tmp_path: Path) -> None:
        def refuse(size: int) -> Action:
            path = self.longer(
                tmp_path / str(size), size, b'"Torch.mul.0.forward": {"input_args": [{'
            )
            return lambda: refused(path)

        assert growth(refuse, 1 << 24, times=64) < TIMES  # of 64 times the bytes: they are not read
        says = refused(self.longer(tmp_path / "whole", 1 << 30, b'"Torch.mul.0.forward": {"a": 1.'))
        assert "is cut off" in says
        assert "copy the dump again" in says

    def test_a_gigabyte_that_ends_behind_a_record_is_read_in_time_in_proportion(
        self, tmp_path: Path
    ) -> None:
        def refuse(size: int) -> Action:
            path = self.longer(tmp_path / str(size), size, b', "Torch.mul.0.forward": {}')
            return lambda: refused(path)

        assert growth(refuse, 1 << 25) < AT_MOST
        end = b', "Torch.mul.0.forward": {}'
        says = refused(self.longer(tmp_path / "whole", 1 << 30, end))
        assert "is cut off: it ends at byte" in says

    def longer(self, folder: Path, size: int, end: bytes) -> Path:
        """Write a dump that is not closed, whose file goes on behind `size` bytes of zeros with `end`."""
        folder.mkdir()
        path = written(folder, json.dumps(GOOD).encode()[:-2])
        with path.open("r+b") as file:
            file.seek(size)
            file.write(end)
        return path

    def test_records_are_opened_and_planned_in_time_in_proportion(self, tmp_path: Path) -> None:
        record = json.dumps({**RECORD, "output": RECORD["input_args"] * 4})

        def plan(count: int) -> Action:
            path = tmp_path / f"{count}.json"
            with path.open("w") as file:
                file.write('{"framework": "pytorch", "data": {')
                file.write(",\n".join(f'"Torch.add.{i}.forward": {record}' for i in range(count)))
                file.write("}}")

            def planned() -> None:
                with open_dump(path) as dump:
                    assert len(plan_tasks(dump, "pytorch", set()).tasks) == count

            return planned

        assert growth(plan, 2_000) < AT_MOST

    def test_a_dump_is_never_held_as_a_whole(self, tmp_path: Path) -> None:
        records = {f"Torch.add.{i}.forward": {"x": "y" * MIB} for i in range(96)}
        path = dump_of(tmp_path, records)

        def plan() -> None:
            with open_dump(path) as dump:
                plan_tasks(dump, "pytorch", set())

        assert peak_mib(plan) < 70  # a chunk and what is found in it

    def test_a_record_of_more_than_can_be_read_is_skipped_with_its_size(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ray_precheck.replay.planner.LARGEST_RECORD_BYTES", MIB)
        data = {
            "Torch.add.0.forward": {"x": "y" * MIB},
            "Torch.mul.0.forward": RECORD,
            "Torch.mul.0.backward": {"x": "y" * 2 * MIB},
            "Torch.sub.0.forward": RECORD,
        }
        found = skips(dump_of(tmp_path, data))
        assert list(found) == ["Torch.add.0", "Torch.mul.0"]
        assert "a record of this call has 1048" in found["Torch.add.0"]
        assert "at most 1 MiB are read" in found["Torch.mul.0"]


def open_dump_or_text(path: Path) -> str:
    try:
        open_dump(path).file.close()
    except DumpError as error:
        return str(error)
    return ""


class TestMembersWithoutEnd:
    """Memory is bounded by the file's size, also where every few bytes are a member."""

    @pytest.mark.parametrize(
        "filler", [b'"":0,', b'"a":{},', b":", b'""', b"{}", b",[]", b'"\\"":', b"\\"]
    )
    def test_five_million_of_them_are_refused_or_few(self, tmp_path: Path, filler: bytes) -> None:
        raw = b'{"task": "statistics", "data": {' + filler * 5_000_000 + b'"b":0}}'
        path = written(tmp_path, raw)
        assert peak_mib(lambda: open_dump_or_text(path)) < 1024

    def test_more_members_than_records_fit_into_a_file_are_no_dump(self, tmp_path: Path) -> None:
        raw = b'{"data": {' + b",".join(b'"%d":0' % i for i in range(1_600_000)) + b"}}"
        assert "too many for records of API calls" in refused(written(tmp_path, raw))

    def test_strings_that_are_no_members_are_counted_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan, "SURE_MEMBERS", 1000)
        assert "too many" in refused(written(tmp_path, b'{"data": {' + b'""' * 10_000 + b"}}"))

    def test_the_limit_grows_with_the_file(self) -> None:
        assert scan.member_limit(0) == 1_500_000
        assert scan.member_limit(1 << 30) > 3_500_000

    # With one such character all of a name take four bytes each, or two.
    @pytest.mark.parametrize("character", ["\U0001f600", "\u0101"])
    def test_names_that_take_more_memory_than_the_file_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, character: str
    ) -> None:
        monkeypatch.setattr(parse, "_SURE_NAME_BYTES", MIB)
        data = {f"{i}{'a' * 10_000}{character}": {} for i in range(200)}
        assert "names in" in refused(written(tmp_path, json.dumps({"data": data}).encode()))


class TestEncodings:
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
    @pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF16_LE])
    def test_utf_16_is_named_with_and_without_its_mark(
        self, tmp_path: Path, encoding: str, mark: bytes
    ) -> None:
        raw = json.dumps(GOOD).encode(encoding)
        path = written(tmp_path, mark + raw if encoding == "utf-16-le" else raw)
        assert "UTF-16" in refused(path)

    @pytest.mark.parametrize("encoding", ["utf-32", "utf-32-le", "utf-32-be"])
    def test_utf_32_is_named_too(self, tmp_path: Path, encoding: str) -> None:
        assert "UTF-16 or UTF-32" in refused(written(tmp_path, json.dumps(GOOD).encode(encoding)))

    def test_a_byte_order_mark_of_utf_8_is_fine(self, tmp_path: Path) -> None:
        with open_dump(written(tmp_path, json.dumps(GOOD).encode("utf-8-sig"))) as dump:
            assert [call.name for call in dump.calls] == ["Torch.add.0"]


class TestFiles:
    def test_a_named_pipe_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "dump.json")
        assert "no regular file" in refused(tmp_path / "dump.json")

    def test_a_device_that_never_ends_is_refused(self) -> None:
        assert "no regular file" in refused(Path("/dev/zero"))

    def test_a_path_with_a_null_byte_is_refused(self) -> None:
        with pytest.raises(DumpError, match="null"):
            open_dump("dump\x00.json")

    def test_a_link_that_leads_to_itself_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "dump.json").symlink_to(tmp_path / "dump.json")
        assert "cannot read the dump" in refused(tmp_path / "dump.json")


class TestHeader:
    @pytest.mark.parametrize("field", ["task", "framework", "dump_data_dir"])
    @pytest.mark.parametrize("value", [[], {}, 5, True, [[[1]]], {"a": {}}])
    def test_a_field_that_is_no_text_is_named(self, tmp_path: Path, field: str, value: Any) -> None:
        text = refused(dump_of(tmp_path, GOOD["data"], **{field: value}))
        assert f"'{field}' of" in text
        assert "a text is expected" in text

    @pytest.mark.parametrize("field", ["task", "framework", "dump_data_dir"])
    def test_a_text_of_ten_million_characters_is_not_read(self, tmp_path: Path, field: str) -> None:
        path = dump_of(tmp_path, GOOD["data"], **{field: "a" * 10**7})
        assert re.search(r"has 1000000\d bytes; a short text is expected", refused(path))
        assert peak_mib(lambda: refused(path)) < 70

    @pytest.mark.parametrize("depth", [500, 1000, 5000, 1_000_000])
    def test_a_field_that_is_nested_without_end_is_refused_or_ignored(
        self, tmp_path: Path, depth: int
    ) -> None:
        text = json.dumps(GOOD).replace('"statistics"', "[" * depth + "]" * depth)
        assert "'task'" in (open_dump_or_text(written(tmp_path, text.encode())) or "'task' ignored")

    def test_an_unknown_text_is_shown_shortened_and_printable(self, tmp_path: Path) -> None:
        text = refused(dump_of(tmp_path, GOOD["data"], task="\x1b]0;title\x07" * 500))
        assert "is unknown; expected one of: statistics, tensor" in text

    def test_foreign_keys_are_shown_printable_and_not_all(self, tmp_path: Path) -> None:
        fields = {f"\x1b[3{i}m\n": 1 for i in range(1000)}
        assert "has no 'data' (found: '\\x1b" in refused(
            written(tmp_path, json.dumps(fields).encode())
        )

    def test_data_that_is_a_text_of_gigabytes_is_seen_by_its_first_character(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path, b'{"data":' + b" " * MIB + b'"' + b"x" * (64 * MIB) + b'"}')
        assert peak_mib(lambda: refused(path)) < 50


class TestNames:
    @pytest.mark.parametrize("character", ["a", ".", "=", "\\", '"', "\n", "\u00e9", "\U0001f600"])
    def test_a_name_of_ten_million_characters_is_a_row_with_a_short_reason(
        self, tmp_path: Path, character: str
    ) -> None:
        def dump_with(size: int) -> Path:
            folder = tmp_path / str(size)
            folder.mkdir()
            name = character * (size // len(json.dumps(character)))
            return dump_of(folder, {f"{name}.0.forward": {}, "Torch.add.0.forward": {}})

        def skip(size: int) -> Action:
            path = dump_with(size)
            return lambda: skips(path)

        assert growth(skip, 10**6) < AT_MOST
        [(name, reason)] = skips(dump_with(10**7)).items()
        count = 10**7 // len(json.dumps(character))
        assert name.startswith(character * count)
        assert reason == f"not an API: a name of {count + 10} characters"

    def test_a_key_too_large_to_hold_is_shortened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan, "LONGEST_KEY_BYTES", MIB)
        data = {"a" * MIB: {}, "a" * MIB + ".": {}, "Torch.add.0.forward": {}}
        with open_dump(dump_of(tmp_path, data)) as dump:
            names = [call.name for call in dump.calls]
        assert len(set(names)) == 3
        assert names[0].startswith("aaa")
        assert "(1048578 bytes at byte" in names[0]

    def test_the_longest_name_is_still_one(self) -> None:
        assert isinstance(parse_key("Torch." + "a" * (LONGEST_NAME - 16) + ".0.forward"), ApiKey)
        assert not isinstance(parse_key("Torch." + "a" * LONGEST_NAME + ".0.forward"), ApiKey)

    @given(
        st.one_of(
            st.text(),
            st.lists(
                st.sampled_from(
                    ["Torch", "Module", "Cell", "add", "0", "1", "01", "forward", "backward", "",
                     "\n", "parameters_grad", "9" * 18, "9" * 19, "\u0663", "a b", "Module\n"]
                ),
                max_size=7,
            ).map(".".join),
        )
    )  # fmt: skip
    def test_the_quick_way_to_split_a_key_is_the_grammar(self, key: str) -> None:
        found = parse_key(key)
        expected = (str(found.name), found.direction) if isinstance(found, ApiKey) else None
        assert split_key(key) == expected

    def test_the_same_key_200_000_times_is_one_call(self, tmp_path: Path) -> None:
        raw = b'{"data": {' + b",".join([b'"Torch.add.0.forward": 1'] * 200_000) + b"}}"
        with open_dump(written(tmp_path, raw)) as dump:
            assert [call.name for call in dump.calls] == ["Torch.add.0"]
            assert dump.payload(Task(0, "Torch.add.0", 0.0)).forward == b"1"


class TestPlanning:
    @pytest.mark.parametrize("extent", [1, 2, 10**18, "9" * 40])
    def test_a_shape_of_100_000_dimensions_is_planned_in_time_in_proportion(
        self, tmp_path: Path, extent: Any
    ) -> None:
        def plan(dimensions: int) -> Action:
            shape = f"[{', '.join([str(extent)] * dimensions)}]"
            raw = json.dumps(GOOD).replace("[2, 3]", shape).encode()
            return self.planning(tmp_path / str(dimensions), raw)

        assert growth(plan, 100_000 // TIMES) < AT_MOST

    def test_200_000_shapes_in_one_record_are_planned_in_time_in_proportion(
        self, tmp_path: Path
    ) -> None:
        def plan(count: int) -> Action:
            records = {"Torch.add.0.forward": [{"shape": [i]} for i in range(count)]}
            raw = json.dumps({**GOOD, "data": records}).encode()
            return self.planning(tmp_path / str(count), raw)

        assert growth(plan, 200_000 // TIMES) < AT_MOST
        with open_dump(tmp_path / "200000" / "dump.json") as dump:
            assert plan_tasks(dump, "pytorch", set()).tasks[0].cost_s > 100

    def planning(self, folder: Path, raw: bytes) -> Action:
        """Return what plans the one call of a dump."""
        folder.mkdir()
        path = written(folder, raw)

        def plan() -> None:
            cost._elements.cache_clear()  # Each try begins anew.
            with open_dump(path) as dump:
                assert len(plan_tasks(dump, "pytorch", set()).tasks) == 1

        return plan

    def test_records_of_megabytes_do_not_share_a_batch(self, tmp_path: Path) -> None:
        path = dump_of(tmp_path, {"Torch.add.0.forward": {"x": "y" * 40 * MIB}})
        with open_dump(path) as dump:
            assert plan_tasks(dump, "pytorch", set()).tasks[0].cost_s > 0.4


TEXTS = st.text(max_size=6) | st.sampled_from(["task", "data", "framework", "Torch.add.0.forward"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(TEXTS, JSON, max_size=5), st.dictionaries(TEXTS, JSON, max_size=5))
def test_any_header_and_any_records_are_refused_or_planned(
    tmp_path: Path, header: dict[str, Any], data: dict[str, Any]
) -> None:
    path = written(tmp_path, json.dumps({"framework": "pytorch", **header, "data": data}).encode())
    reason = open_dump_or_text(path)
    assert reason.isprintable()
    if reason:
        return
    with open_dump(path) as dump:
        plan = plan_tasks(dump, "mindspore", set())
        assert len(plan.tasks) + len(plan.skipped) == len(dump.calls)
        for index, call in enumerate(dump.calls):
            dump.payload(Task(index, call.name, 0.0))
