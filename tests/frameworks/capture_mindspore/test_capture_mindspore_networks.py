"""Networks of mindspore.nn and mint.nn: each operator of a step has a record, and each record is checked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops
from mindspore_networks import NETWORKS, captured_step, gradients_of
from records import capture_settings, failing, payloads_of

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.frameworks.mindspore.backend import _primitive
from ray_precheck.schema.result import TaskResult, Verdict

Captured = Callable[..., dict[str, Any]]
# The others have the same operators in other places.
SOME = ["MLP", "CNN with BatchNorm", "LSTM", "autoencoder", "language model", "classifier"]


def checked(folder: Path) -> list[TaskResult]:
    checker = Checker(capture_settings(str(folder), standard=STANDARDS["auto"]()), "cpu")
    return [checker.check(payload) for payload in payloads_of(str(folder))]


@pytest.mark.parametrize("name", [*SOME, "own primitives"])
def test_each_operator_of_a_network_has_a_record_that_is_checked(name: str, tmp_path: Path) -> None:
    net, inputs, loss = NETWORKS[name]()
    records, seen = captured_step(net, lambda: gradients_of(net, inputs, loss), tmp_path)
    assert seen.outside == {}
    assert sum(key.startswith("Primitive.") for key in records) > 1
    (folder,) = tmp_path.glob("step0/*")
    results = checked(folder)
    assert list(failing(results)) == []
    odd = [r for r in results if Verdict.SKIP in (r.forward, r.backward)]
    assert [f"{r.name}: {r.message}" for r in odd] == []
    assert sum(r.backward is Verdict.PASS for r in results) > 3


def test_a_primitive_is_recorded_with_its_attributes_and_once(captured: Captured) -> None:
    a, b = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((4, 3), np.float32))
    records = captured(lambda: [ops.MatMul(transpose_b=True)(a, b), ops.matmul(a, b.T)])
    record = records["Primitive.MatMul.0.forward"]
    assert record["input_kwargs"] == {
        "transpose_a": {"type": "bool", "value": False},
        "transpose_b": {"type": "bool", "value": True},
    }
    assert record["output"][0]["shape"] == [2, 4]
    assert [key for key in records if "atmul" in key.lower() or "MatMul" in key] == [
        "Primitive.MatMul.0.forward",
        "Functional.matmul.0.forward",
    ]


def test_what_says_something_about_a_tensor_has_no_record(captured: Captured) -> None:
    x = Tensor(np.ones((2, 3), np.float32))
    records = captured(lambda: [ops.shape(x), ops.Shape()(x), ops.rank(x), ops.Rank()(x)])
    assert records == {}


def test_a_wrong_kernel_of_a_primitive_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is wrong where the stride is 2, as a record says by an attribute."""
    net, inputs, loss = NETWORKS["CNN with BatchNorm"]()
    captured_step(net, lambda: gradients_of(net, inputs, loss), tmp_path)
    right = ops.Conv2D.__call__

    def wrong(self: Any, *args: Any) -> Any:
        out = right(self, *args)
        return out * 1.01 if self.stride[-1] == 2 else out

    monkeypatch.setattr(ops.Conv2D, "__call__", wrong)
    (folder,) = tmp_path.glob("step0/*")
    blamed = {check.name for check in failing(checked(folder))}
    assert blamed == {
        "Primitive.Conv2D.1.forward.output.0",
        "Primitive.Conv2D.1.backward.output.0",
        "Primitive.Conv2D.1.backward.output.1",
    }


def test_cells_are_the_parents_of_their_primitives(captured: Captured, tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 2), nn.ReLU())
    captured(lambda: net(Tensor(np.ones((2, 3), np.float32))), model=net, level="mix")
    (path,) = tmp_path.glob("dump/step0/*/construct.json")
    construct = json.loads(path.read_text())
    assert construct["Primitive.MatMul.0.forward"] == "Cell.0.Dense.forward.0"
    assert construct["Primitive.ReLU.0.forward"] == "Cell.1.ReLU.forward.0"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_statistics_that_a_norm_changes_stand_in_its_record_and_are_checked(
    task: str, tmp_path: Path
) -> None:
    x = Tensor(np.random.rand(8, 3).astype(np.float32))
    mean, var, scale, shift = (Tensor(np.ones(3, np.float32)) for _ in range(4))
    norm = nn.BatchNorm1d(3)
    norm.set_train()

    def program() -> None:
        norm(x)
        for training in (True, False):
            ops.batch_norm(x, mean, var, scale, shift, training)

    with Capture(tmp_path, step_by="manual", framework="mindspore", task=task):
        program()
    (folder,) = tmp_path.glob("step0/*")
    records = json.loads((folder / "dump.json").read_text())["data"]
    assert {key: list(each["changed"]) for key, each in records.items() if "changed" in each} == {
        "Primitive.BatchNorm.0.forward": ["input_args.3", "input_args.4"],
        "Functional.batch_norm.0.forward": ["input_args.1", "input_args.2"],
        "Functional.batch_norm.1.forward": [],
    }
    results = checked(folder)
    assert [
        check.name.partition(".forward.")[2]
        for r in results
        for check in r.checks
        if "changed" in check.name
    ] == [
        *("changed.mean", "changed.variance"),
        *("changed.running_mean", "changed.running_var"),
    ]
    assert list(failing(results)) == []


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_mixed_precision_is_captured_and_checked_in_the_dtypes_that_were_used(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1 rewrites the network, the others cast in C++ what operators get."""
    monkeypatch.chdir(tmp_path)  # where O1 writes the network's new source
    net, inputs, loss = NETWORKS["CNN with BatchNorm"]()
    net = amp.auto_mixed_precision(net, level)
    records, seen = captured_step(net, lambda: gradients_of(net, inputs, loss), tmp_path)
    assert seen.outside == {}
    product = records["Primitive.MatMul.0.forward"]
    given = [element["dtype"] for element in product["input_args"]]
    assert given == ["Float16", "Float16"] or product["autocast"] == "Float16"
    (folder,) = tmp_path.glob("step0/*")
    results = checked(folder)
    assert list(failing(results)) == []
    assert [f"{r.name}: {r.message}" for r in results if r.forward is not Verdict.PASS] == []
    assert sum(r.backward is Verdict.PASS for r in results) > 5


@pytest.mark.parametrize(
    "name", ["Custom", "Print", "TensorDump", "PyFunc", "AllReduce", "Primitive"]
)
def test_a_primitive_that_does_more_than_to_compute_is_never_made(
    name: str, mindspore_checker: Checker
) -> None:
    """A dump may hold any name, and `Custom` loads the library that its attribute names."""
    assert _primitive("Conv2D") is not None
    assert _primitive(name) is None
