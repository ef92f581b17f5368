"""The forward records of MindSpore's calls."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops
from mindspore.mint import matmul
from mindspore.mint.nn import functional

from ray_precheck.capture.mindspore.names import recorded_functions
from ray_precheck.dump.parse import open_dump
from ray_precheck.dump.tensors import CapturedTensors, read_sketches
from ray_precheck.numerics.sketch import sketch
from ray_precheck.numerics.statistics import summary_of
from ray_precheck.schema.values import TensorSpec

Captured = Callable[..., dict[str, Any]]
A = np.array([[1.5, -2.0, 0.0], [4.0, 0.25, -1.0]], np.float32)


def tensor_record(values: Any, dtype: str) -> dict[str, Any]:
    """Return the element that stands for a tensor, its statistics by numpy."""
    wide = np.asarray(values, np.float64)
    return {
        "type": "mindspore.Tensor",
        "dtype": dtype,
        "shape": list(wide.shape),
        "Max": wide.max(),
        "Min": wide.min(),
        "Mean": pytest.approx(wide.mean(), rel=1e-12),
        "Norm": pytest.approx(np.linalg.norm(wide.reshape(-1)), rel=1e-12),
    }


def test_calls_have_the_names_under_which_they_are_called(captured: Captured) -> None:
    x, turned = Tensor(A), Tensor(A.T)

    def action() -> None:
        mint.add(x, x)
        ops.add(x, x)
        x.add(x)
        x + x
        2 - x
        -x  # noqa: B018
        x[0]
        x @ turned
        functional.relu(x)
        mint.nn.functional.relu(x)
        mint.special.log1p(x)
        x.astype(ms.float16)

    keys = list(captured(action))
    assert keys == [
        "Mint.add.0.forward",
        "Functional.add.0.forward",
        "Tensor.add.0.forward",
        "Tensor.__add__.0.forward",
        "Tensor.__rsub__.0.forward",
        "Tensor.__neg__.0.forward",
        "Tensor.__getitem__.0.forward",
        "Tensor.__matmul__.0.forward",
        "MintFunctional.relu.0.forward",
        "MintFunctional.relu.1.forward",
        "Mint.special.log1p.0.forward",
        "Tensor.to.0.forward",
    ]


def test_functions_imported_by_name_are_seen(captured: Captured) -> None:
    x = Tensor(A)
    assert list(captured(lambda: matmul(x, Tensor(A.T)))) == ["Mint.matmul.0.forward"]


def test_what_a_recorded_call_calls_itself_is_not_recorded(captured: Captured) -> None:
    x = Tensor(A)
    keys = list(captured(lambda: [ops.cosine_similarity(x, x), x.ptp(), x + x]))
    assert "Functional.cosine_similarity.0.forward" in keys
    # Tensor.ptp is two methods, both of which have a record.
    assert keys[1:] == ["Tensor.max.0.forward", "Tensor.min.0.forward", *keys[3:]]
    assert keys[-1] == "Tensor.__add__.0.forward"


def test_tensors_have_dtype_shape_and_statistics(captured: Captured) -> None:
    x = Tensor(A)
    record = captured(lambda: mint.add(x, 2, alpha=3))["Mint.add.0.forward"]
    assert record["input_args"] == [tensor_record(A, "Float32"), {"type": "int", "value": 2}]
    assert record["input_kwargs"] == {"alpha": {"type": "int", "value": 3}}
    assert record["output"] == [tensor_record(A + 6, "Float32")]


def test_arguments_of_other_types_have_msprobes_forms(captured: Captured) -> None:
    x = Tensor(A)

    def action() -> None:
        x.to(ms.float16)
        x[..., 1:2]
        mint.sum(x, dim=(0, 1), dtype=ms.float32)
        mint.split(x, 1, dim=0)
        mint.add(x, np.float32(2))

    records = captured(action)
    half = records["Tensor.to.0.forward"]
    assert half["input_args"][1] == {"type": "mindspore.dtype", "value": "Float16"}
    assert half["output"][0]["dtype"] == "Float16"
    _, index = records["Tensor.__getitem__.0.forward"]["input_args"]
    assert index == [
        {"type": "ellipsis", "value": "..."},
        {"type": "slice", "value": [1, 2, None]},
    ]
    kwargs = records["Mint.sum.0.forward"]["input_kwargs"]
    assert kwargs["dtype"] == {"type": "mindspore.dtype", "value": "Float32"}
    assert kwargs["dim"] == [{"type": "int", "value": 0}, {"type": "int", "value": 1}]
    assert len(records["Mint.split.0.forward"]["output"]) == 2
    assert records["Mint.add.0.forward"]["input_args"][1] == {"type": "float32", "value": 2.0}


def test_what_a_call_changes_in_place_is_recorded_before_and_after(captured: Captured) -> None:
    x = Tensor(A.copy())

    def action() -> None:
        x[0] = 9.0

    record = captured(action)["Tensor.__setitem__.0.forward"]
    assert (record["input_args"][0]["Max"], record["output"][0]["Max"]) == (4.0, 9.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([True, False]), (True, False, None, None)),
        (np.array(3.0, np.float32), (3.0, 3.0, 3.0, 3.0)),
        (np.array([3 + 4j, 0]), (5.0, 0.0, 2.5, 5.0)),
        (np.array([3, -4]), (3.0, -4.0, -0.5, 5.0)),
        (np.array([np.inf, 1], np.float32), (np.inf, 1.0, np.inf, np.inf)),
    ],
)
def test_statistics_are_those_of_msprobe(values: Any, expected: tuple[Any, ...]) -> None:
    assert summary_of(values) == expected


def test_tensors_without_elements_have_no_statistics() -> None:
    assert summary_of(np.zeros((0, 2), np.float32)) is None


def test_bfloat16_is_looked_at_and_saved_as_float32(captured: Captured, tmp_path: Path) -> None:
    x = Tensor(A, ms.bfloat16)
    record = captured(lambda: mint.add(x, x), task="tensor")["Mint.add.0.forward"]
    (element,) = record["output"]
    assert element["dtype"] == "BFloat16"
    assert element["Max"] == 8.0
    assert element["data_name"] == "Mint.add.0.forward.output.0.npy"
    (file,) = tmp_path.glob(f"dump/step0/*/dump_tensor_data/{element['data_name']}")
    saved = np.load(file)
    assert saved.dtype == np.float32
    assert np.array_equal(saved, 2 * A)


def test_tensors_have_sketches_and_health(captured: Captured, tmp_path: Path) -> None:
    values = np.where(A == 4, np.nan, A)
    record = captured(lambda: mint.add(Tensor(values), 1), sketch=True)["Mint.add.0.forward"]
    (folder,) = tmp_path.glob("dump/step0/*")
    rows = read_sketches(folder)
    given = record["input_args"][0]
    np.testing.assert_allclose(rows[given["sketch"]], sketch(values), rtol=1e-6)
    assert (given["health"]["nan"], given["health"]["zero"]) == (1, 1)
    assert record["output"][0]["sketch"] == given["sketch"] + 1


def test_a_capture_is_read_as_a_dump(captured: Captured, tmp_path: Path) -> None:
    x = Tensor(A)
    captured(lambda: [mint.add(x, x), x * 2])
    (path,) = tmp_path.glob("dump/step0/*/dump.json")
    with open_dump(path) as dump:
        assert dump.framework == "mindspore"
        assert [call.name for call in dump.calls] == ["Mint.add.0", "Tensor.__mul__.0"]
    stacks = json.loads(path.with_name("stack.json").read_text())
    keys, lines = stacks["0"]
    assert keys == ["Mint.add.0.forward"]
    assert "captured(lambda: [mint.add(x, x), x * 2])" in lines[0]


def test_nothing_is_patched_after_a_capture(captured: Captured) -> None:
    own = {id(place.function): place for place in recorded_functions()}
    before = {
        "Tensor": dict(vars(ms.Tensor)),
        "ops": dict(vars(ops)),
        "mint": dict(vars(mint)),
        "functional": dict(vars(functional)),
        "Cell": ms.nn.Cell.__call__,
        "here": matmul,
    }
    captured(lambda: mint.add(Tensor(A), 1))
    assert dict(vars(ms.Tensor)) == before["Tensor"]
    for name, module in (("ops", ops), ("mint", mint), ("functional", functional)):
        now = vars(module)
        assert now.keys() == before[name].keys()
        assert all(now[key] is value for key, value in before[name].items())
    assert ms.nn.Cell.__call__ is before["Cell"]
    assert matmul is before["here"]
    assert {id(place.function) for place in recorded_functions()} == set(own)
    # Nor has a capture before this one left anything.
    code = [getattr(value, "__code__", None) for value in vars(ms.Tensor).values()]
    assert not [each for each in code if each and "ray_precheck" in each.co_filename]


def test_random_numbers_are_those_of_a_run_without_capture(captured: Captured) -> None:
    def draw() -> Any:
        ms.set_seed(3)
        ms.manual_seed(3)
        drawn = [ops.standard_normal((4,)), ops.dropout(Tensor(np.ones(64, np.float32)), p=0.5)]
        return np.concatenate([each.asnumpy().reshape(-1) for each in drawn])

    plain, seen = draw(), []
    captured(lambda: seen.append(draw()))
    assert np.array_equal(plain, seen[0])


def test_records_say_how_tensors_lie_in_memory_and_which_share_it(captured: Captured) -> None:
    x = Tensor(A)

    def action() -> None:
        mint.add(x, x)
        mint.matmul(mint.transpose(x, 0, 1), mint.narrow(x, 1, 1, 2))
        mint.sin(mint.broadcast_to(mint.narrow(x, 0, 1, 1), (4, 3)))
        mint.add(x, Tensor(A))

    records = captured(action)

    def layouts(call: str) -> list[dict[str, Any]]:
        given = records[f"{call}.forward"]["input_args"]
        return [{k: v for k, v in each.items() if k in LAYOUT} for each in given]

    assert layouts("Mint.add.0") == [{}, {"shares": "input_args.0"}]
    assert layouts("Mint.matmul.0") == [
        {"stride": [1, 3]},
        {"stride": [3, 1], "offset": 1, "shares": "input_args.0"},
    ]
    assert layouts("Mint.sin.0") == [{"stride": [0, 1], "offset": 3}]
    assert layouts("Mint.add.1") == [{}, {}]


LAYOUT = ("stride", "offset", "shares")


def test_the_structure_of_values_is_told_where_it_counts(captured: Any) -> None:
    x = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    x[[3, 8]], x[5] = 0, 2
    broken = np.where(np.arange(32) == 7, np.nan, x).astype(np.float32)
    image = (0.01 * np.resize(x, (4, 4, 4, 8)) + 3).astype(np.float32)
    index = ms.Tensor([5, 7, 5, 0], ms.int64)

    def action() -> None:
        mint.nn.functional.softmax(ms.Tensor(x), -1)
        mint.nn.functional.softmax(ms.Tensor(x, ms.float16), -1)
        mint.nn.functional.group_norm(ms.Tensor(image), 2)
        ops.gather(ms.Tensor(x), index, 0)
        ms.Tensor(x)[index]
        mint.nn.functional.relu(ms.Tensor(broken))
        ops.Softmax()(ms.Tensor(x))

    found = {
        key.rpartition(".")[0]: argument["structure"]
        for key, record in captured(action).items()
        for argument in record["input_args"]
        if isinstance(argument, dict) and "structure" in argument
    }
    rows = {"rows": 16, "zero_rows": 2, "equal_rows": 1}
    means = found.pop("MintFunctional.group_norm.0")
    assert means["rows"] == 16
    assert 2.9 < means["row_means"][0] < means["row_means"][1] < 3.1
    assert found == {
        "MintFunctional.softmax.0": rows,
        "MintFunctional.softmax.1": rows,
        "Functional.gather.0": {"distinct": 3},
        "Tensor.__getitem__.0": {"distinct": 3},
        "MintFunctional.relu.0": {"nan": 16},
        "Primitive.Softmax.0": rows,
    }


def test_tensors_have_the_names_that_the_model_has_for_them(captured: Captured) -> None:
    class Scaled(ms.nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = ms.Parameter(ms.Tensor(np.ones(3, np.float32)), name="weight")

        def construct(self, x: ms.Tensor, mask: ms.Tensor) -> ms.Tensor:
            return mint.mul(mint.mul(x, self.weight), mask)

    model, values = Scaled(), ms.Tensor(np.ones(3, np.float32))
    mask = ms.Tensor(np.zeros(3, np.float32))
    records = captured(lambda: model(values, mask=mask))
    first, second = (records[f"Mint.mul.{number}.forward"]["input_args"] for number in (0, 1))
    assert (first[0]["argument"], first[1]["parameter"]) == ("x", "weight")
    assert "argument" not in second[0]
    assert second[1]["argument"] == "mask"


def test_bfloat16_is_saved_as_it_is_with_safetensors(captured: Captured, tmp_path: Path) -> None:
    x = Tensor(A, ms.bfloat16)
    options = {"task": "tensor", "tensor_format": "safetensors"}
    record = captured(lambda: mint.add(x, x), **options)["Mint.add.0.forward"]
    (element,) = record["output"]
    assert element["data_name"] == "Mint.add.0.forward.output.0.safetensors"
    (file,) = tmp_path.glob(f"dump/step0/*/dump_tensor_data/{element['data_name']}")
    spec = TensorSpec("bfloat16", A.shape, data_name=file.name)
    assert np.array_equal(CapturedTensors(file.parent).tensor(spec, "x").data, 2 * A)
    assert b'"BF16"' in file.read_bytes()
