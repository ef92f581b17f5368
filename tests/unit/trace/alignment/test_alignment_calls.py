"""What the alignment sees of the records of a capture."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.alignment.calls import Call, calls_of, family_of
from ray_precheck.trace.side import API, GRADIENTS, MODULE, open_side

pytestmark = pytest.mark.unit


def tensor(*shape: int, **more: Any) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), **more}


def read(folder: Path, data: dict[str, Any]) -> list[Call]:
    path = folder / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "level": "mix", "data": data}))
    with open_side(path) as side:
        return calls_of(side)


def test_a_call_is_told_by_its_forward_record(tmp_path: Path) -> None:
    data = {
        "Torch.add.3.backward": {"input": [tensor(9)], "output": [tensor(9)]},
        "Torch.add.3.forward": {
            "input_args": [tensor(2, 3), {"type": "int", "value": 1}],
            "input_kwargs": {"other": tensor(3)},
            "output": [tensor(2, 3, Max=1.0, Norm=2.5, md5="0a")],
        },
    }
    assert read(tmp_path, data) == [
        Call("Torch.add.3", API, "Torch.add", "add", ((2, 3), (3,)), ((2, 3),), ("0a",), (2.5,))
    ]


def test_the_largest_value_stands_for_a_missing_norm_and_nan_for_both(tmp_path: Path) -> None:
    outputs = [tensor(2, Max=3.0, Norm=None), tensor(2)]
    (call,) = read(tmp_path, {"Torch.topk.0.forward": {"output": outputs}})
    assert call.norms[0] == 3.0
    assert math.isnan(call.norms[1])
    assert call.digests == ()


def test_a_call_with_a_backward_record_alone_has_the_shapes_of_its_forward_pass(
    tmp_path: Path,
) -> None:
    record = {"input": [tensor(2, 5, Norm=1.0)], "output": [tensor(2, 3), tensor(3, 5)]}
    (call,) = read(tmp_path, {"Torch.matmul.0.backward": record})
    assert (call.inputs, call.outputs, call.norms) == (((2, 3), (3, 5)), ((2, 5),), ())


def test_calls_of_which_there_are_gradients_alone_are_in_the_order_of_the_forward_pass(
    tmp_path: Path,
) -> None:
    names = ["Torch.c.0", "Torch.b.0", "Torch.a.0"]
    data: dict[str, Any] = {f"{name}.backward": {"input": [tensor(2)]} for name in names}
    data["Optimizer.SGD.0.forward"] = {"output": [tensor(2)]}
    found = [call.name for call in read(tmp_path, data)]
    assert found == [*reversed(names), "Optimizer.SGD.0"]


def test_a_recomputed_call_names_the_first_one(tmp_path: Path) -> None:
    data = {
        "Torch.add.0.forward": {"output": [tensor(2)]},
        "Torch.add.1.forward": {"output": [tensor(2)], "recompute": "Torch.add.0.forward"},
    }
    assert [call.recompute_of for call in read(tmp_path, data)] == ["", "Torch.add.0"]


def test_modules_and_gradients_have_the_family_of_their_class(tmp_path: Path) -> None:
    data = {
        "Module.net.fc.Linear.forward.1": {"output": [tensor(2)]},
        "Module.net.fc.Linear.parameters_grad": {"weight": [tensor(4, 4, Norm=1.0)]},
        "Optimizer.AdamW.0.forward": {"output": [tensor(2)]},
    }
    assert [(call.name, call.kind, call.family, call.outputs) for call in read(tmp_path, data)] == [
        ("Module.net.fc.Linear.1", MODULE, "Linear", ((2,),)),
        ("Module.net.fc.Linear.parameters_grad", GRADIENTS, "Linear.parameters_grad", ((4, 4),)),
        ("Optimizer.AdamW.0", API, "Optimizer.AdamW", ((2,),)),
    ]


def test_a_record_that_cannot_be_read_is_a_call_without_shapes(tmp_path: Path) -> None:
    (call,) = read(tmp_path, {"Torch.add.0.forward": 7})
    assert (call.name, call.inputs, call.outputs) == ("Torch.add.0", (), ())


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("add", "Torch.add Tensor.__add__ Tensor.__iadd__ Tensor.__radd__ Tensor.add_ Mint.add"),
        ("linear", "Functional.linear MintFunctional.linear Functional.dense"),
        ("div", "Tensor.__truediv__ Torch.true_divide Mint.div Functional.tensor_div"),
        ("permute", "Tensor.permute Functional.transpose"),
        ("transpose", "Tensor.transpose Tensor.swapaxes Torch.swapdims"),
        ("linalg.norm", "Torch.linalg.norm Functional.norm"),
        ("norm", "Torch.norm Tensor.norm"),
        ("conv2d", "Functional.conv2d Mint.conv2d_ext Torch.nn.conv2d"),
        ("to", "Tensor.to Tensor.float Tensor.astype"),
        ("_", "Torch._"),
        ("__x__", "Torch.____x____"),
        ("alone", "alone"),
        ("Optimizer.SGD", "Optimizer.SGD"),
    ],
)
def test_the_family_is_the_operator_whatever_its_spelling(family: str, names: str) -> None:
    assert {name: family_of(name) for name in names.split()} == dict.fromkeys(names.split(), family)
