"""dump.json as a whole: header, calls in file order, and what is refused."""

import gc
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.dump import parse, scan
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import DumpError, NothingToCheckError
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

FORWARD = {"input_args": [], "input_kwargs": {}, "output": []}


def written(folder: Path, data: Any, **header: Any) -> Path:
    """Write a dump as msprobe does: header first, then data."""
    path = folder / "dump.json"
    fields = {"task": "statistics", "level": "L1", "framework": "pytorch", **header, "data": data}
    path.write_text(json.dumps({key: field for key, field in fields.items() if field != "-"}))
    return path


def refused(path: Path) -> str:
    """Return why a file is no dump; it must be closed then (ResourceWarning is an error)."""
    with pytest.raises(DumpError) as error:
        open_dump(path)
    assert str(path) in str(error.value)
    return str(error.value)


def names(dump: Dump) -> list[str]:
    return [call.name for call in dump.calls]


def test_calls_come_in_file_order_with_both_records(tmp_path: Path) -> None:
    data = {
        "Torch.mul.0.forward": {"n": 1},
        "Tensor.__add__.0.forward": {"n": 2},
        "Torch.add.0.forward": {"n": 3},
        "Torch.add.0.backward": {"n": 4},
        "Torch.mul.0.backward": {"n": 5},
        "Torch.sub.0.backward": {"n": 6},
    }
    with open_dump(written(tmp_path, data)) as dump:
        assert names(dump) == ["Torch.mul.0", "Tensor.__add__.0", "Torch.add.0", "Torch.sub.0"]
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
    assert [(p.forward, p.backward) for p in payloads] == [
        (b'{"n": 1}', b'{"n": 5}'),
        (b'{"n": 2}', None),
        (b'{"n": 3}', b'{"n": 4}'),
        (None, b'{"n": 6}'),
    ]
    assert [(p.index, p.name) for p in payloads] == list(enumerate(names(dump)))


def test_of_a_record_that_stands_twice_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    key = '"Torch.add.0.forward"'
    path.write_text(
        f'{{"data": {{{key}: {{"n": 1}}, "Torch.x.0.forward": {{}}, {key}: {{"n": 2}}}}}}'
    )
    with open_dump(path) as dump:
        assert names(dump) == ["Torch.add.0", "Torch.x.0"]
        assert dump.raw(dump.calls[0].forward) == b'{"n": 2}'


def test_modules_are_no_calls_and_other_records_keep_their_place_and_say_why(
    tmp_path: Path,
) -> None:
    data = {
        "Module.fc.Linear.forward.0": {},
        "Torch.add.0.forward": FORWARD,
        "strange": {},
        "Module.fc.parameters_grad": {},
    }
    with open_dump(written(tmp_path, data, level="mix")) as dump:
        assert names(dump) == ["Torch.add.0", "strange"]
        assert [bool(call.foreign) for call in dump.calls] == [False, True]
        assert "does not end in" in dump.calls[1].foreign


@pytest.mark.parametrize("foreign_first", [True, False])
def test_a_foreign_key_that_looks_like_a_call_does_not_hide_it(
    tmp_path: Path, foreign_first: bool
) -> None:
    keys = ["Torch.add.0", "Torch.add.0.forward"]
    data = dict.fromkeys(keys if foreign_first else reversed(keys), FORWARD)
    with open_dump(written(tmp_path, data)) as dump:
        checkable = [call for call in dump.calls if not call.foreign]
        assert [call.name for call in checkable] == ["Torch.add.0"]
        assert dump.raw(checkable[0].forward) == json.dumps(FORWARD).encode()


def test_a_dump_of_modules_only_asks_for_another_level(tmp_path: Path) -> None:
    data = {
        "Module.fc.Linear.forward.0": {},
        "Cell.net.Dense.backward.0": {},
        "a.parameters_grad": {},
    }
    text = refused(written(tmp_path, data, level="L0"))
    assert "modules but no API" in text
    assert "level L1 or mix" in text


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere.json")


def test_a_folder_is_told_to_be_one(tmp_path: Path) -> None:
    assert "is a folder; name the dump.json in it" in refused(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"   ", b"hello", b"[1, 2]", b"\x00\x01", b"data: 1"])
def test_what_is_no_json_object_is_not_a_dump(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "dump.json"
    path.write_bytes(raw)
    assert "is not a dump" in refused(path)


def test_a_dump_that_is_cut_off_is_told_to_be_copied_again(tmp_path: Path) -> None:
    path = written(tmp_path, {"Torch.add.0.forward": FORWARD})
    path.write_bytes(path.read_bytes()[:-2])
    assert "is cut off" in refused(path)


def test_without_data_the_fields_that_are_there_are_named(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text('{"task": "statistics", "stack": {}}')
    assert "has no 'data' (found: stack, task)" in refused(path)


@pytest.mark.parametrize("data", [None, [], "text", 5, [{"Torch.add.0.forward": FORWARD}]])
def test_data_must_be_an_object(tmp_path: Path, data: Any) -> None:
    assert "must be an object of API records" in refused(written(tmp_path, data))


def test_data_without_a_record_says_that_nothing_was_captured(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    assert "the capture saw no API call" in refused(path)
    with pytest.raises(NothingToCheckError) as error:
        open_dump(path)
    assert error.value.exit_code == 4


def test_an_empty_object_has_no_data(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text("{}")
    assert "has no 'data' (found: nothing)" in refused(path)


def test_an_unknown_task_is_named_with_the_known_ones(tmp_path: Path) -> None:
    text = refused(written(tmp_path, {"Torch.add.0.forward": FORWARD}, task="free_benchmark"))
    assert "'free_benchmark'" in text
    assert "statistics, tensor, structure, overflow_check" in text


def test_an_unknown_framework_is_named_with_the_known_ones(tmp_path: Path) -> None:
    text = refused(written(tmp_path, {"Torch.add.0.forward": FORWARD}, framework="jax"))
    assert "'jax'" in text
    assert "mindspore, pytorch, mindtorch" in text


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_task_is_read_from_the_header(tmp_path: Path, task: str) -> None:
    with open_dump(written(tmp_path, {"Torch.add.0.forward": FORWARD}, task=task)) as dump:
        assert dump.task == task


@pytest.mark.parametrize("task", ["structure", "overflow_check", "nan_check"])
def test_records_of_other_tasks_are_read_as_statistics(tmp_path: Path, task: str) -> None:
    with open_dump(written(tmp_path, {"Torch.add.0.forward": FORWARD}, task=task)) as dump:
        assert (names(dump), dump.task) == (["Torch.add.0"], "statistics")


@pytest.mark.parametrize(
    ("task", "read_as"),
    [("overflow_check", "tensor"), ("nan_check", "tensor"), ("structure", "statistics")],
)
def test_a_check_that_has_saved_tensors_is_read_as_tensors(
    tmp_path: Path, task: str, read_as: str
) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    with open_dump(written(tmp_path, {"Torch.add.0.forward": FORWARD}, task=task)) as dump:
        assert dump.task == read_as


def test_a_structure_without_records_says_what_to_capture(tmp_path: Path) -> None:
    text = refused(written(tmp_path, {}, task="structure"))
    assert text.endswith("its task is structure; capture the step with task statistics or tensor")


@pytest.mark.parametrize("task", ["-", None, ""])
def test_a_dump_that_names_no_task_has_statistics(tmp_path: Path, task: str | None) -> None:
    with open_dump(written(tmp_path, {"Torch.add.0.forward": FORWARD}, task=task)) as dump:
        assert dump.task == "statistics"


@pytest.mark.parametrize(
    ("kind", "framework"),
    [("mindspore.Tensor", "mindspore"), ("torch.nn.parameter.Parameter", "pytorch"), ("int", "")],
)
@pytest.mark.parametrize("header", ["-", None])
def test_a_framework_that_is_not_named_is_seen_in_the_types_of_tensors(
    tmp_path: Path, kind: str, framework: str, header: str | None
) -> None:
    data = {"A.b.0.forward": {}, "A.c.0.forward": {"input_args": [{"type": kind, "value": 1}]}}
    with open_dump(written(tmp_path, data, framework=header)) as dump:
        assert dump.framework == framework


def test_the_framework_of_the_header_counts_more_than_the_types(tmp_path: Path) -> None:
    data = {"A.b.0.forward": {"input_args": [{"type": "torch.Tensor"}]}}
    with open_dump(written(tmp_path, data, framework="mindspore")) as dump:
        assert dump.framework == "mindspore"


def test_captured_tensors_lie_beside_the_dump_where_the_recorded_folder_is_stale(
    tmp_path: Path,
) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    stale = str(tmp_path / "gone" / "dump_tensor_data")
    path = written(tmp_path, {"A.b.0.forward": {}}, task="tensor", dump_data_dir=stale)
    with open_dump(path) as dump:
        assert dump.data_folder == tmp_path / "dump_tensor_data"


def test_captured_tensors_lie_in_the_recorded_folder_where_none_is_beside(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = written(tmp_path, {"A.b.0.forward": {}}, dump_data_dir=str(elsewhere))
    with open_dump(path) as dump:
        assert dump.data_folder == elsewhere


@pytest.mark.parametrize("recorded", ["-", None, ""])
def test_without_a_recorded_folder_it_is_the_one_beside(
    tmp_path: Path, recorded: str | None
) -> None:
    with open_dump(written(tmp_path, {"A.b.0.forward": {}}, dump_data_dir=recorded)) as dump:
        assert dump.data_folder == tmp_path / "dump_tensor_data"


def test_the_digest_is_sha_256_of_the_file_and_leaves_records_readable(tmp_path: Path) -> None:
    path = written(tmp_path, {"A.b.0.forward": {"n": 1}})
    with open_dump(str(path)) as dump:
        assert dump.digest() == hashlib.sha256(path.read_bytes()).hexdigest()
        assert dump.raw(dump.calls[0].forward) == b'{"n": 1}'
        assert dump.raw(None) is None


def test_the_file_is_closed_after_use(tmp_path: Path) -> None:
    with open_dump(written(tmp_path, {"A.b.0.forward": {}})) as dump:
        assert not dump.file.closed
    assert dump.file.closed


def test_progress_is_told_in_bytes_from_nothing_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 100)
    monkeypatch.setattr(scan, "_KEYS_AT_A_TIME", 10)
    path = written(tmp_path, {f"Torch.add.{n}.forward": FORWARD for n in range(100)})
    told: list[tuple[int, int]] = []
    open_dump(path, on_progress=lambda done, total: told.append((done, total))).file.close()
    size = path.stat().st_size
    done = [each for each, _ in told]
    assert {total for _, total in told} == {size}
    assert done == sorted(done)
    assert done[-1] == size
    # The structure is the first half, the keys are the second.
    assert sum(each <= size / 2 for each in done) == -(-size // 100)
    assert sum(size / 2 < each for each in done) >= 10


def test_names_may_take_half_of_the_file_more_than_is_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parse, "_SURE_NAME_BYTES", 1 << 20)
    others = {f"{number}{'a' * 10_000}": {} for number in range(150)}
    with open_dump(written(tmp_path, {"Torch.add.0.forward": FORWARD, **others})) as dump:
        assert len(dump.calls) == 151


@pytest.mark.parametrize("room", [0, -1])
def test_names_may_take_no_more_than_that(
    tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, {f"Torch.add.{number}.forward": FORWARD for number in range(9)})
    names_bytes = sum(sys.getsizeof(f"Torch.add.{number}") for number in range(9))
    sure_bytes = names_bytes - path.stat().st_size // 2 + room
    monkeypatch.setattr(parse, "_SURE_NAME_BYTES", sure_bytes)
    if room < 0:
        assert "names of API calls are short" in refused(path)
    else:
        with open_dump(path) as dump:
            assert len(dump.calls) == 9


def test_a_value_of_blanks_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    for blanks in ("  ", " " * 40_000):
        path.write_text(f'{{"task": "statistics", "framework": "pytorch", "data":{blanks}}}')
        assert "must be an object of API records" in refused(path)


@pytest.mark.parametrize(
    ("said", "knows"), [("-", False), (True, True), (False, False), ("true", False), ([1], False)]
)
def test_the_header_says_whether_layouts_were_captured(
    tmp_path: Path, said: Any, knows: bool
) -> None:
    data = {"Torch.add.0.forward": FORWARD}
    with open_dump(written(tmp_path, data, layouts=said)) as dump:
        assert dump.knows_layouts is knows


def test_a_header_behind_the_records_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    data = {f"Torch.add.{number}.forward": FORWARD for number in range(1000)}
    path.write_text(json.dumps({"data": data, "task": "tensor", "framework": "pytorch"}))
    with open_dump(path) as dump:
        assert (dump.task, dump.framework, len(dump.calls)) == ("tensor", "pytorch", 1000)


# With a blank before it, its quotes, the comma and a blank behind it.
@pytest.mark.parametrize(("length", "is_short"), [(16384 - 5, True), (16384 - 4, False)])
def test_a_header_field_has_16_kibibytes_at_most(
    tmp_path: Path, length: int, is_short: bool
) -> None:
    reason = refused(written(tmp_path, {"Torch.add.0.forward": FORWARD}, framework="x" * length))
    assert (" bytes; a short text is expected" in reason) is not is_short


@pytest.mark.parametrize(("room", "framework"), [(0, "pytorch"), (-1, "")])
def test_records_that_are_not_read_do_not_tell_the_framework(
    tmp_path: Path, room: int, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"A.b.0.forward": {"input_args": [{"type": "torch.Tensor", "value": 1}]}}
    path = written(tmp_path, data, framework="-")
    with open_dump(path) as dump:
        span = dump.calls[0].forward
    assert span is not None
    monkeypatch.setattr(parse, "LARGEST_RECORD_BYTES", span.end - span.start + room)
    with open_dump(path) as dump:
        assert dump.framework == framework


def test_the_search_for_cycles_goes_on_only_where_it_was_on(tmp_path: Path) -> None:
    path = written(tmp_path, {"Torch.add.0.forward": FORWARD})
    was_on = gc.isenabled()
    try:
        for switch in (gc.enable, gc.disable):
            switch()
            before = gc.isenabled()
            with open_dump(path):
                assert gc.isenabled() is before
    finally:
        (gc.enable if was_on else gc.disable)()
