"""Which calls have records, under which names, with which arguments."""

import json
import math
import operator
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional
from torch import relu
from torch.nn.functional import dropout

from ray_precheck.capture.pytorch.names import FunctionNames

pytestmark = pytest.mark.frameworks


def keys(records: dict[str, Any]) -> list[str]:
    return [key for key in records if key.endswith(".forward")]


def one(records: dict[str, Any]) -> Any:
    (key,) = keys(records)
    return records[key]


def test_a_function_that_was_imported_by_name_is_seen(captured: Any) -> None:
    x = torch.randn(3)
    assert keys(captured(lambda: relu(x))) == ["Torch.relu.0.forward"]


def test_calls_are_numbered_by_name(captured: Any) -> None:
    x = torch.randn(3)
    records = captured(lambda: (torch.sin(x), torch.cos(x), torch.sin(x), x.sin()))
    assert keys(records) == [
        "Torch.sin.0.forward",
        "Torch.cos.0.forward",
        "Torch.sin.1.forward",
        "Tensor.sin.0.forward",
    ]


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (lambda x: x + 1, "__add__"),
        (lambda x: 1 + x, "__radd__"),
        (lambda x: x - 1, "__sub__"),
        (lambda x: 1 - x, "__rsub__"),
        (lambda x: x * 2, "__mul__"),
        (lambda x: 2 * x, "__rmul__"),
        (lambda x: x / 2, "__truediv__"),
        (lambda x: x @ x, "__matmul__"),
        (lambda x: x % 2, "__mod__"),
        (lambda x: x**2, "__pow__"),
        (lambda x: 2**x, "__rpow__"),
        (lambda x: x // 2, "__floordiv__"),
        (lambda x: x == 1, "__eq__"),
        (lambda x: x != 1, "__ne__"),
        (lambda x: x < 1, "__lt__"),
        (lambda x: x >= 1, "__ge__"),
        (lambda x: x[0], "__getitem__"),
        (lambda x: operator.iadd(x, 1), "__iadd__"),
        (lambda x: operator.imul(x, 2), "__imul__"),
        (lambda x: operator.itruediv(x, 2), "__itruediv__"),
        (lambda x: x.add(1), "add"),
        (lambda x: x.mul(2), "mul"),
        (lambda x: x.matmul(x), "matmul"),
        (lambda x: x.gt(1), "gt"),
    ],
)
def test_an_operator_has_the_name_that_was_written(
    captured: Any, action: Callable[[torch.Tensor], Any], name: str
) -> None:
    x = torch.rand(3) + 1
    assert keys(captured(lambda: action(x))) == [f"Tensor.{name}.0.forward"]


def test_an_operator_that_fails_leaves_its_name_to_no_other(captured: Any) -> None:
    x = torch.randn(3)

    def action() -> None:
        with pytest.raises(TypeError):
            x + "a"  # type: ignore[operator]
        x.add(1)

    assert keys(captured(action))[-1] == "Tensor.add.0.forward"


def test_a_division_by_a_tensor_is_the_two_calls_that_torch_makes(captured: Any) -> None:
    x = torch.rand(3) + 1
    records = captured(lambda: 1 / x)
    assert keys(records) == ["Tensor.reciprocal.0.forward", "Tensor.__mul__.0.forward"]


def test_a_function_with_several_names_has_the_documented_one(captured: Any) -> None:
    x = torch.randn(3, 3)
    assert keys(captured(lambda: torch.mm(x, x))) == ["Torch.mm.0.forward"]
    undocumented = {name: getattr(torch, name) for name in ("dsmm", "spmm", "hsmm", "saddmm")}
    names = FunctionNames()
    assert {name: names[f].key for name, f in undocumented.items()} == {
        **dict.fromkeys(("dsmm", "spmm"), "Torch.mm"),
        "hsmm": "Torch.hspmm",
        "saddmm": "Torch.sspaddmm",
    }
    # Of all functions that stand under several names in one namespace only these have a name without
    # an entry in the documentation: a new one in a later torch is seen here.
    places: dict[Any, set[str]] = {}
    for name in dir(torch):
        function = getattr(torch, name)
        if isinstance(function, types.BuiltinFunctionType) and not name.startswith("_"):
            places.setdefault(function, set()).add(name)
    twice = [sorted(each) for each in places.values() if len(each) > 1]
    assert sorted(twice) == [["dsmm", "mm", "spmm"], ["hsmm", "hspmm"], ["saddmm", "sspaddmm"]]


def test_what_a_function_calls_itself_has_no_record(captured: Any) -> None:
    x, w = torch.randn(2, 3, 8), torch.randn(24, 8)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    del w
    names = {key.split(".")[1] for key in keys(captured(lambda: attention(x, x, x)))}
    assert "softmax" not in names
    assert "linear" not in names


def test_questions_about_a_tensor_have_no_record(captured: Any) -> None:
    x = torch.randn(3)

    def action() -> None:
        _ = x.shape, x.size(), x.dim(), x.dtype, x.is_contiguous(), x.numel(), len(x), x.device
        _ = x.sum().item(), float(x[0]), bool(x[0] > 9), x.tolist(), x.detach(), x.data
        x.requires_grad_(False)

    # msprobe has a record of `bool(tensor)`.
    expected = {"sum", "__getitem__", "__gt__", "__bool__"}
    assert {key.split(".")[1] for key in keys(captured(action))} == expected


def test_an_operator_of_another_namespace_has_its_name(captured: Any) -> None:
    x = torch.randn(3)
    library = torch.library.Library("capture_test", "DEF")
    try:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        both = lambda: (torch.ops.aten.sin(x), torch.ops.capture_test.twice(x))  # noqa: E731
        found = keys(captured(both, custom_op_namespaces=["capture_test"]))
        assert found == ["Aten.sin.0.forward", "capture_test.twice.0.forward"]
        assert keys(captured(both, custom_op_namespaces=["other"])) == ["Aten.sin.0.forward"]
    finally:
        library._destroy()


class TestArguments:
    def test_python_functions_have_them_as_they_were_written(self, captured: Any) -> None:
        x = torch.rand(3)

        def action() -> None:
            dropout(x, 0.0, True)
            dropout(x, p=0.0, training=True)
            dropout(x, 0.0)

        first, second, third = captured(action).values()
        assert len(first["input_args"]) == 3
        assert not first["input_kwargs"]
        assert len(second["input_args"]) == 1
        assert list(second["input_kwargs"]) == ["p", "training"]
        assert len(third["input_args"]) == 2
        assert not third["input_kwargs"]

    def test_an_unpacked_call_leaves_out_what_is_the_default(self, captured: Any) -> None:
        x = torch.rand(3)
        record = one(captured(lambda: dropout(*[x], p=0.25)))
        assert record["input_kwargs"] == {"p": {"type": "float", "value": 0.25}}

    def test_every_kind_of_value_has_its_form(self, captured: Any) -> None:
        x = torch.arange(24.0).reshape(2, 3, 4)
        record = one(captured(lambda: x[0, ..., 1:3, None]))
        assert record["input_args"][1] == [
            {"type": "int", "value": 0},
            {"type": "ellipsis", "value": "..."},
            {"type": "slice", "value": [1, 3, None]},
            None,
        ]
        record = one(captured(lambda: torch.zeros((2, 3), dtype=torch.half, device="cpu")))
        assert record["input_kwargs"] == {
            "dtype": {"type": "torch.dtype", "value": "torch.float16"},
            "device": {"type": "torch.device", "value": "cpu"},
        }
        record = one(captured(lambda: x.to(memory_format=torch.contiguous_format)))
        assert record["input_kwargs"]["memory_format"]["format"] == "contiguous_format"
        assert one(captured(lambda: x.expand(x.shape)))["input_args"][1] == {
            "type": "torch.Size",
            "value": [2, 3, 4],
        }

    def test_nested_tensors_are_found(self, captured: Any) -> None:
        x, y = torch.ones(2), torch.zeros(3)
        record = one(captured(lambda: torch.cat([x, y])))
        assert [each["shape"] for each in record["input_args"][0]] == [[2], [3]]


class TestOutputs:
    def test_several_have_an_element_each(self, captured: Any) -> None:
        x = torch.randn(4, 3)
        assert len(one(captured(lambda: x.max(dim=0)))["output"]) == 2
        assert len(one(captured(lambda: x.split(2)))["output"]) == 2
        assert len(one(captured(lambda: torch.linalg.svd(x)))["output"]) == 3

    def test_a_change_in_place_shows_the_value_before_and_after(self, captured: Any) -> None:
        x = torch.ones(3)
        record = one(captured(lambda: x.mul_(3)))
        assert record["input_args"][0]["Max"] == 1.0
        assert record["output"][0]["Max"] == 3.0
        assert record["output"][0]["version"] == 1

    def test_an_assignment_to_a_part_shows_the_whole_after_it(self, captured: Any) -> None:
        x = torch.ones(3)

        def action() -> None:
            x[1] = 7

        record = one(captured(action))
        assert record["input_args"][0]["Max"] == 1.0
        assert record["output"][0]["Max"] == 7.0

    def test_out_is_shown_before_and_after(self, captured: Any) -> None:
        x, out = torch.ones(3), torch.zeros(3)
        record = one(captured(lambda: torch.add(x, 1, out=out)))
        assert record["input_kwargs"]["out"]["Max"] == 0.0
        assert record["output"][0]["Max"] == 2.0

    def test_a_change_is_seen_in_what_shares_the_memory(self, captured: Any) -> None:
        x = torch.ones(4)
        view, alias = x[:2], x.data

        def action() -> None:
            torch.neg(view)
            alias.mul_(5)  # moves no version but its own
            torch.neg(view)
            torch.neg(x)

        records = captured(action)
        maxima = [records[f"Torch.neg.{n}.forward"]["input_args"][0]["Max"] for n in range(3)]
        assert maxima == [1.0, 5.0, 5.0]

    def test_memory_that_was_given_back_is_no_longer_known(self, captured: Any) -> None:
        def action() -> None:
            for value in range(20):
                torch.neg(torch.full((1000,), float(value)))

        records = captured(action)
        found = [records[f"Torch.neg.{n}.forward"]["input_args"][0]["Max"] for n in range(20)]
        assert found == [float(n) for n in range(20)]


class TestStatistics:
    @pytest.mark.parametrize(
        ("tensor", "expected"),
        [
            (torch.tensor([1.0, -2.0, 4.0]), (4.0, -2.0, 1.0, math.sqrt(21))),
            (torch.tensor([1, -2, 4]), (4, -2, None, None)),
            (torch.tensor([True, False]), (True, False, None, None)),
            (torch.tensor(3), (3, 3, 3, 3)),
            (torch.tensor(2.5), (2.5, 2.5, 2.5, 2.5)),
            (torch.tensor([1.0, 2.0], dtype=torch.float64), (2.0, 1.0, None, None)),
            (torch.tensor([3 + 4j, 1j]), (5.0, 1.0, 3.0, None)),
            (torch.tensor([1.0, 2.0]).half(), (2.0, 1.0, 1.5, math.sqrt(5))),
            (torch.tensor([1.0, 2.0]).bfloat16(), (2.0, 1.0, 1.5, math.sqrt(5))),
            (torch.empty(0), (None, None, None, None)),
            (torch.empty(3, device="meta"), (None, None, None, None)),
            (torch.ones(2).to(torch.float8_e4m3fn), (None, None, None, None)),
            (torch.tensor([1.0, 2.0]).expand(3, 2), (2.0, 1.0, 1.5, math.sqrt(15))),
            (torch.arange(6.0).reshape(2, 3).t(), (5.0, 0.0, 2.5, math.sqrt(55))),
            (torch.arange(6.0)[::2], (4.0, 0.0, 2.0, math.sqrt(20))),
            (torch.full((3,), 1e30), (1e30, 1e30, 1e30, math.sqrt(3) * 1e30)),
            (torch.full((3,), 1e-30), (1e-30, 1e-30, 1e-30, math.sqrt(3) * 1e-30)),
            (torch.tensor([math.inf, 1.0]), (math.inf, 1.0, math.inf, math.inf)),
            (torch.eye(2).to_sparse(), (1.0, 1.0, 1.0, math.sqrt(2))),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, torch.Tensor) else "",
    )
    def test_they_are_those_of_msprobe(
        self, captured: Any, tensor: torch.Tensor, expected: tuple[Any, ...]
    ) -> None:
        found = one(captured(lambda: torch.clone(tensor)))["input_args"][0]
        for name, value in zip(("Max", "Min", "Mean", "Norm"), expected, strict=True):
            assert type(found[name]) is type(value)
            same = found[name] is None if value is None else found[name] == pytest.approx(value)
            assert same, name

    def test_not_a_number_stands_as_a_bare_word(self, captured: Any) -> None:
        x = torch.tensor([1.0, math.nan])
        found = one(captured(lambda: torch.neg(x)))["output"][0]
        assert all(math.isnan(found[name]) for name in ("Max", "Min", "Mean", "Norm"))

    def test_sums_of_many_values_are_exact_to_float32(self, captured: Any) -> None:
        torch.manual_seed(0)
        x = torch.randn(1_000_003) * 3 + 0.01
        found = one(captured(lambda: torch.neg(x)))["input_args"][0]
        assert found["Mean"] == pytest.approx(x.double().mean().item(), rel=1e-4)
        assert found["Norm"] == pytest.approx(x.double().norm().item(), rel=1e-6)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_a_named_tuple_is_an_object(captured: Any) -> None:
    class Takes(torch.nn.Module):
        def forward(self, pair: Pair) -> torch.Tensor:
            return pair.left + pair.right

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Takes()

        def forward(self, pair: Pair) -> torch.Tensor:
            return self.inner(pair)  # type: ignore[no-any-return]

    model, pair = Model(), Pair(torch.ones(2), torch.zeros(2))
    records = captured(lambda: model(pair), level="mix", model=model)
    (record,) = [each for key, each in records.items() if key.startswith("Module.")]
    assert list(record["input_args"][0]) == ["left", "right"]


def test_a_fault_of_the_capture_ends_it_and_not_the_training(
    captured: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray_precheck.capture.pytorch.tensors import many

    def broken(kind: str, tensor: torch.Tensor) -> str:
        raise KeyError("fault")

    x = torch.ones(2)
    torch.neg(x)
    monkeypatch.setattr(many, "header_text", broken)
    results = []
    with pytest.raises(ValueError, match="not enough values"):  # no dump, only the log
        captured(lambda: results.extend([torch.neg(x), torch.neg(x)]))
    assert len(results) == 2
    told = capsys.readouterr().err
    assert told.count("KeyError") == 1
    assert "goes on" in told


def test_random_states_are_not_moved(captured: Any) -> None:
    torch.manual_seed(3)
    plain = torch.nn.functional.dropout(torch.ones(50)), torch.rand(5)
    torch.manual_seed(3)
    seen: list[torch.Tensor] = []
    captured(
        lambda: seen.extend([torch.nn.functional.dropout(torch.ones(50)), torch.rand(5)]),
        task="tensor",
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


def test_the_dump_has_msprobes_header(tmp_path: Any) -> None:
    from ray_precheck.capture import Capture

    with Capture(tmp_path / "d", step_by="manual", framework="pytorch") as capture:
        torch.ones(2) + 1
    (folder,) = capture.captured
    header = json.loads((folder / "dump.json").read_text())
    del header["data"]
    assert header == {
        "task": "statistics",
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": None,
        "dark": {"count": 0, "places": []},
        "layouts": True,
    }
    stacks = json.loads((folder / "stack.json").read_text())
    lines = next(lines for names, lines in stacks.values() if "Tensor.__add__.0.forward" in names)
    assert "test_calls.py" in lines[0]
    assert lines[0].endswith("\n torch.ones(2) + 1")


def test_an_optimizer_has_one_record_for_its_update(captured: Any) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def action() -> None:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    records = captured(action)
    (key,) = [key for key in records if key.startswith("Optimizer.")]
    assert key == "Optimizer.AdamW.0.forward"
    assert not [name for name in records if "addcmul" in name or "sqrt" in name]
    before, after = records[key]["input_args"][0]["params"], records[key]["output"][0]["params"]
    assert before[0]["Max"] != after[0]["Max"]
    assert after[0]["Max"] == pytest.approx(model.weight.max().item())


def test_a_sketch_names_its_row(captured: Any, tmp_path: Any) -> None:
    import numpy as np

    from ray_precheck.dump.tensors import read_sketches
    from ray_precheck.numerics.sketch import sketch

    x = torch.randn(300, 70)
    x[0, 0] = math.nan
    records = captured(lambda: (torch.neg(x), torch.abs(x.t())), sketch=True)
    (folder,) = tmp_path.glob("dump*/step0/*")
    rows = read_sketches(folder)
    given = records["Torch.neg.0.forward"]["input_args"][0]
    assert given["health"]["nan"] == 1
    expected = sketch(x.numpy())
    assert np.allclose(rows[given["sketch"]], expected, rtol=1e-6)
    turned = records["Torch.abs.0.forward"]["input_args"][0]
    assert turned["sketch"] != given["sketch"]
    assert np.allclose(rows[turned["sketch"]], sketch(x.t().numpy()), rtol=1e-6)
    assert json.loads((folder / "dump.json").read_text())["task"] == "statistics"


def test_torchs_own_table_of_functions_has_no_detours(tmp_path: Path) -> None:
    text = f"""
        import torch
        from ray_precheck.capture import Capture
        with Capture({str(tmp_path / "dump")!r}, step_by="manual"):
            torch.ones(2) + 1
            torch.overrides.get_overridable_functions()
        found = torch.overrides.get_overridable_functions()[torch.Tensor]
        print(torch.Tensor.__add__ in found)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_structure_has_records_and_no_values(tmp_path: Path, level: str) -> None:
    from ray_precheck.capture import Capture

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    capture = Capture(
        tmp_path, task="structure", level=level, step_by="manual", framework="pytorch", model=model
    )
    with capture, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 3)).sum().backward()
    (dump,) = tmp_path.glob("step0/*/dump.json")
    records = json.loads(dump.read_text())["data"]
    assert any(".Linear.forward" in key for key in records)
    assert any("linear" in key for key in records) == (level == "mix")
    fields = {name for record in records.values() for name in record}
    assert fields <= {"stack", "parent", "autocast"}


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gate = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor, batch: Any = None, mask: torch.Tensor | None = None) -> Any:
        return self.linear(x) * self.gate * self.scale + mask[:, None] + batch["bias"]


class Wrapper(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_tensors_have_the_names_that_the_model_has_for_them(captured: Any, level: str) -> None:
    def names(records: dict[str, Any]) -> dict[str, str]:
        return {
            f"{key}.{place}": each[kind]
            for key, record in records.items()
            if key.endswith("0.forward") and not key.startswith("Module.")
            for place, each in enumerate(record["input_args"])
            for kind in ("argument", "parameter", "buffer")
            if isinstance(each, dict) and kind in each
        }

    given = torch.randn(2, 3), {"bias": torch.randn(3)}
    model, mask = Masked(), torch.ones(2)
    expected = {
        "Functional.linear.0.forward.0": "x",
        "Functional.linear.0.forward.1": "linear.weight",
        "Functional.linear.0.forward.2": "linear.bias",
        "Tensor.__mul__.0.forward.1": "gate",
        "Tensor.__getitem__.0.forward.0": "mask",
    }
    found = captured(lambda: model(*given, mask=mask), level=level)
    assert names(found) == expected
    assert found["Tensor.__mul__.1.forward"]["input_args"][1]["buffer"] == "scale"
    assert found["Tensor.__add__.1.forward"]["input_args"][1]["argument"] == "batch.bias"
    wrapped = captured(lambda: Wrapper(model)(*given, mask=mask), level=level)
    assert names(wrapped)["Functional.linear.0.forward.0"] == "x"
    assert names(wrapped)["Tensor.__mul__.0.forward.1"] == "module.gate"
    # The same tensor outside of the model, and what was computed from it, have no names.
    assert names(captured(lambda: torch.sin(given[0] * 1))) == {}
