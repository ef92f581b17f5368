"""A dump that is read by its form says what it says record by record."""

import json
import math
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.forms import DumpForm, FormedSide, blank_of, open_formed
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit

GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "f1"}


def tensor(high: Any = 1.5, **more: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3],
        "Max": high, "Min": 0.0, "Mean": 0.5, "Norm": 2.5, "requires_grad": True, **more,
    }  # fmt: skip


def records(high: Any = 1.5) -> dict[str, Any]:
    return {
        "Torch.add.0.forward": {"input_args": [tensor(high), {"type": "int", "value": 3}, None],
                                "input_kwargs": {}, "output": [tensor(-2.25)], "stack": "0"},
        "Torch.ones.0.forward": {"input_args": [{"type": "torch.Size", "value": [2, 3]}],
                                 "input_kwargs": {"device": {"type": "torch.device", "value": "cuda:0"}},
                                 "output": [tensor(1.0, parameter="a: b", md5="00ff00ff")]},
        "Distributed.all_reduce.0.forward": {"input_args": [tensor(4.0)], "input_kwargs": {},
                                             "output": [tensor(8.0)], "group": GROUP},
        "Torch.\u00e9.0.forward": [1],
    }  # fmt: skip


def written(path: Path, data: Any, **header: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"task": "statistics", "level": "mix", "framework": "pytorch", **header, "data": data}
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def formed(path: Path) -> FormedSide:
    found = open_formed(path)
    assert found is not None
    with found:  # Its text is in memory.
        return found


def own_form(path: Path) -> DumpForm:
    with open_side(path) as side:
        places = [(entry.key, entry.span) for entry in side.entries]
        return DumpForm(path.read_bytes(), places, side.header)


def says_the_same(path: Path) -> bool:
    with formed(path) as ours, open_side(path) as theirs:
        assert [entry[:4] for entry in ours.entries] == [entry[:4] for entry in theirs.entries]
        return (ours.header, ours.note) == (theirs.header, theirs.note) and all(
            ours.raw(mine) == theirs.raw(other) and ours.record(mine) == theirs.record(other)
            for mine, other in zip(ours.entries, theirs.entries, strict=True)
        )


def test_dumps_of_one_program_have_one_form(tmp_path: Path) -> None:
    sides = []
    for rank, high in enumerate((1.5, -1e-30, 7, None, math.nan, -math.inf, "nan", True)):
        data = records(high)
        data["Torch.ones.0.forward"]["input_kwargs"]["device"]["value"] = f"cuda:{rank * 6}"
        data["Torch.ones.0.forward"]["input_args"][0]["value"] = [*range(rank)]
        data["Distributed.all_reduce.0.forward"]["group"] = {
            **GROUP, "group_ranks": [*range(rank)], "group_id": f"f{rank}" * rank,
        }  # fmt: skip
        folder = tmp_path / f"rank{rank}"
        path = written(folder / "dump.json", data, dump_data_dir=str(folder), loss_scale=2.0)
        assert says_the_same(path)
        sides.append(formed(path))
    assert len({side.formed.form for side in sides}) == 1
    numbers = [side.formed.numbers[sides[0].formed.form.names.index("Max")] for side in sides]
    assert numbers[:2] == [1.5, -1e-30]
    assert all(math.isnan(number) for number in numbers[2:])
    assert [side.header.data_folder for side in sides] == [
        str(tmp_path / f"rank{rank}") for rank in range(len(sides))
    ]


def changes() -> Iterator[tuple[str, Any]]:
    """Yield what must not be taken for a dump of the same form."""
    data = records()
    for number, (name, value) in enumerate([
        ("shape", [3, 2]), ("shape", [23]), ("dtype", "torch.float16"), ("requires_grad", False),
        ("Max", [[1.5]]), ("Max", {}), ("parameter", "w"), ("Max", 'a"b'),
    ]):  # fmt: skip
        other = records()
        other["Torch.add.0.forward"]["output"][0][name] = value
        yield f"{name} {number}", other
    yield "a key", {key.replace("add.0", "add.1"): value for key, value in data.items()}
    yield "an order", dict(reversed(data.items()))
    yield "one record less", dict([*data.items()][:-1])


@pytest.mark.parametrize(("what", "other"), [*changes()])
def test_another_structure_is_another_form(tmp_path: Path, what: str, other: Any) -> None:
    one = formed(written(tmp_path / "one.json", records()))
    path = written(tmp_path / "other.json", other)
    assert one.formed.form.read(path.read_bytes()) is None, what
    assert says_the_same(path)


def test_whatever_a_text_is_changed_to_it_says_what_stands_there(tmp_path: Path) -> None:
    text = written(tmp_path / "dump.json", records()).read_text(encoding="utf-8")
    form = formed(tmp_path / "dump.json").formed.form
    draw = random.Random(3)
    path, has_form = tmp_path / "other.json", 0
    for _ in range(3000):
        at, size = draw.randrange(len(text)), draw.choice((0, 1, 1, 2))
        put = "".join(draw.choice('0123456789.e-+:, "[]{}nul\\') for _ in range(draw.randrange(3)))
        other = (text[:at] + put + text[at + size :]).encode()
        try:
            json.loads(other)
        except ValueError:
            continue
        read = form.read(other)
        if read is None:
            continue
        has_form += 1
        path.write_bytes(other)
        assert says_the_same(path), other
        # Blanks are the same whichever dump a form was made of.
        assert own_form(path).names == form.names
    assert has_form > 100


def test_a_template_has_the_numbers_of_blanks(tmp_path: Path) -> None:
    side = formed(written(tmp_path / "dump.json", records()))
    template = side.formed.form.template()
    assert [*template] == [*records()]
    element = template["Torch.add.0.forward"]["output"][0]
    assert element["shape"] == [2, 3]
    assert side.formed.values[blank_of(element["Max"])] == -2.25
    assert side.formed.values[blank_of(template["Torch.ones.0.forward"]["input_args"][0]["value"])]
    assert blank_of(element["dtype"]) == -1


def test_forms_that_were_not_used_for_long_are_let_go(tmp_path: Path) -> None:
    first = weakref.ref(formed(written(tmp_path / "first.json", records())).formed.form)
    kept = weakref.ref(formed(written(tmp_path / "kept.json", {"a": records()})).formed.form)
    for number in range(20):
        formed(written(tmp_path / "other.json", {f"Torch.add.{number}.forward": records()}))
        formed(tmp_path / "kept.json")
    assert first() is None
    assert kept() is formed(tmp_path / "kept.json").formed.form


@pytest.mark.parametrize(
    "text",
    [
        b'{"data": {"a": ',
        b'{"data": {}}',
        b'{"data": [1]}',
        b"\xef\xbb\xbf{}",
        b'{"data": {"a": {"Max": 1.0}, "a": {"Max": 2.0}}}',
        b'{"data": {"a": {"Max": 1.2.3}}}',
        b'{"data": {"a": "\\u0000blank 1"}}',
    ],
)
def test_what_has_no_form_is_left_to_the_scan(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "dump.json"
    path.write_bytes(text)
    assert open_formed(path) is None
    assert open_formed(tmp_path / "none.json") is None
