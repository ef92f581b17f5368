"""Rules of a watched training, and the files that its rows go into."""

import csv
import math
import os
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.capture.rules import History, parse_trigger, windows_of
from ray_precheck.capture.watching.table import FIXED, EventFile, WatchTable
from ray_precheck.errors import UsageError
from ray_precheck.formats.protobuf import fields_of, tfrecords_in

pytestmark = pytest.mark.unit
JUMP = "grad_norm > 10 * median"


def fires(text: str, earlier: list[float], **now: float | None) -> bool:
    """Return whether a rule fires on a step behind others with these gradient norms."""
    trigger = parse_trigger(text)
    history = History(windows_of([trigger]))
    for value in earlier:
        history.add({"Grad Norm": value, "Loss": value})
    headings = {"grad_norm": "Grad Norm", "loss": "Loss", "nan": "NaN", "layer": "Grad Norm a.0"}
    return trigger.fires({headings[name]: value for name, value in now.items()}, history)


@pytest.mark.parametrize(
    ("rule", "earlier", "now", "expected"),
    [
        (JUMP, [1.0] * 20, 10.1, True),
        (JUMP, [1.0] * 20, 9.9, False),
        (JUMP, [1.0] * 19, 1e9, False),
        (JUMP, [1.0] * 20, math.nan, True),
        (JUMP, [1.0] * 20, None, False),
        (JUMP, [math.inf] * 5 + [1.0] * 19, 1e9, False),
        ("grad_norm > 3 * max(grad_norm, 5)", [9.0] * 20 + [1.0] * 5, 3.1, True),
        ("grad_norm > 3 * max", [9.0] * 20 + [1.0] * 5, 3.1, False),
        ("grad_norm > last + 1", [5.0, 1.0], 2.5, True),
        ("grad_norm < min / 2", [1.0] * 20, 0.4, True),
        ("0.9 < grad_norm / mean <= 1.1", [1.0] * 20, 1.0, True),
        ("grad_norm / (mean - 1) > 0", [1.0] * 20, 1.0, False),
        ("not grad_norm > 2", [], 1.0, True),
        ("not grad_norm > 10 * median", [1.0], 1.0, False),
        ("grad_norm > 10 * median or grad_norm > 5", [1.0], 6.0, True),
        ("grad_norm > 10 * median and grad_norm > 5", [1.0], 6.0, False),
        ("grad_norm > -2e0", [], 1.0, True),
    ],
)
def test_a_rule_fires_where_it_is_known_to_be_true(
    rule: str, earlier: list[float], now: float | None, expected: bool
) -> None:
    assert fires(rule, earlier, grad_norm=now) is expected


def test_columns_of_a_rule_may_be_several_and_those_of_modules() -> None:
    assert fires("loss > grad_norm", [], loss=2.0, grad_norm=1.0)
    assert fires('grad_norm["a.0"] > 3', [], layer=4.0)
    assert not fires('grad_norm["b"] > 3', [], layer=4.0)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            "grad_nrm > 10 * median",
            "at character 1: 'grad_nrm' is no column; there are step, loss,",
        ),
        ("grad_norm > 10 * mode(loss)", "at character 18: 'mode' is no function; there are median"),
        ("loss > grad_norm * median", "at character 20: 'median' of which column?"),
        ("grad_norm >", "no rule at its end: invalid syntax"),
        ("grad_norm", "at character 1: 'grad_norm' is no comparison"),
        ("", "no rule"),
        ("loss > (grad_norm > 2)", "at character 9: 'grad_norm > 2' is not known in rules"),
        ("loss > __import__('os').system('true')", "is no function"),
        ("loss.real > 1", "'loss.real' is not known in rules"),
        ("loss > True", "'True' is no number"),
        ("loss > 1e999", "'1e999' is no finite number"),
        ("loss > 'x'", "is no number"),
        ("loss in (1, 2)", "compares otherwise"),
        ("loss > 2 ** 8", "'2 ** 8' is not known in rules"),
        ("median(loss, 0) > 1", "'0' is no count of rows"),
        ("median(loss, 5, 6) > 1", "expected median(grad_norm)"),
        ("median(3) > 1", "'3' is not known in rules"),
        ("loss > " + "-" * 50 + "1", "nested more than"),
        ("loss > " + "(" * 300 + "1" + ")" * 300, "no rule"),
        ("loss > 1 " * 200, "more than 1,000 characters"),
        ("loss > \0", "no rule"),
        ('grad_norm["é"] > x', "at character 18: 'x' is no column"),
    ],
)
def test_what_is_no_rule_is_one_sentence_with_its_place(rule: str, said: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_trigger(rule)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def row(step: int, **more: Any) -> dict[str, Any]:
    return {"Step": step, "Rank": 0, "Loss": 0.5, **more}


def test_a_table_goes_on_below_the_rows_of_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "watch_0.csv"
    table = WatchTable(path)
    table.write(row(0, Trigger='grad_norm["a,b"] > 1'))
    table.close()
    with path.open("ab") as file:
        file.write(b"1,0,torn by kil")
    table = WatchTable(path)
    table.write(row(0) | {"Grad Norm a": 2.0})
    table.write(row(1) | {"Loss": math.nan})
    table.close()
    table = WatchTable(path)
    table.write(row(0) | {"Grad Norm a": 3.0, "Param Norm b": 4.0})
    table.close()
    found = rows_of(path)
    assert [each["Step"] for each in found] == ["0", "0", "1", "0"]
    assert found[0]["Trigger"] == 'grad_norm["a,b"] > 1'
    assert [each["Grad Norm a"] for each in found] == ["", "2", "", "3"]
    assert [each["Param Norm b"] for each in found] == ["", "", "", "4"]
    assert [each["Loss"] for each in found] == ["0.5", "0.5", "nan", "0.5"]
    assert os.listdir(tmp_path) == ["watch_0.csv"]


@pytest.mark.parametrize("torn_at", [0, 5, 60])
def test_a_table_whose_first_line_was_torn_begins_anew(tmp_path: Path, torn_at: int) -> None:
    path = tmp_path / "watch_0.csv"
    WatchTable(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:torn_at])
    WatchTable(path).close()
    assert path.read_bytes() == whole
    assert tuple(whole.decode("utf-8-sig").strip().split(",")) == FIXED


def test_a_file_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "watch_0.csv"
    path.write_text("mine,own\n1,2")
    with pytest.raises(UsageError, match="was not written by capture --watch"):
        WatchTable(path)
    assert path.read_text() == "mine,own\n1,2"


def test_a_table_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    table = WatchTable(tmp_path / "watch_0.csv")
    with pytest.raises(BlockingIOError):
        WatchTable(tmp_path / "watch_0.csv")
    table.close()


def test_an_event_file_has_what_tensorboard_reads(tmp_path: Path) -> None:
    events = EventFile(tmp_path)
    events.write(300, row(300) | {"Grad Norm layers.0": 1e300, "Trigger": "x", "Inf": None})
    events.close()
    (file,) = tmp_path.iterdir()
    first, second = (
        {each.number: each for each in fields_of(record)}
        for record in tfrecords_in(memoryview(file.read_bytes()), file.name)
    )
    assert first[3].data == b"brain.Event:2"
    assert second[2].value == 300
    values = [
        {each.number: bytes(each.data) for each in fields_of(v.data)}
        for v in fields_of(second[5].data)
    ]
    assert values == [
        {1: b"Loss", 2: b"\x00\x00\x00\x3f"},
        {1: b"Grad Norm/layers.0", 2: b"\x00\x00\x80\x7f"},
    ]


def test_checksums_of_an_event_file_are_those_of_the_format() -> None:
    from ray_precheck.capture.watching.table import _masked_crc

    # "123456789" is the check value of CRC-32C (RFC 3720): 0xE3069283, here rotated and shifted.
    crc = 0xE3069283
    assert (
        _masked_crc(b"123456789")
        == ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
    )
