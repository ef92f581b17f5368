"""PrecisionDebugger under msprobe's name, in a program of MindSpore."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from ray_precheck.capture import PrecisionDebugger

X = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))


pytestmark = pytest.mark.usefixtures("one_debugger")


def made(tmp_path: Path, **found: Any) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "risk_level": "ALL", **found}))
    return PrecisionDebugger(str(path), framework="mindspore")


def dump_of(tmp_path: Path, step: int = 0, file: str = "dump.json") -> dict[str, Any]:
    (found,) = (tmp_path / "dump").glob(f"step{step}/*/{file}")
    return dict(json.loads(found.read_text()))


def test_what_runs_between_start_and_stop_is_the_step(tmp_path: Path) -> None:
    debugger = made(tmp_path, step=[1])
    for _ in range(2):
        debugger.start()
        mint.exp(X)
        debugger.stop()
        mint.abs(X)
        PrecisionDebugger.start()
        mint.exp(X)
        PrecisionDebugger.stop()
        debugger.step()
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step1"]
    assert list(dump_of(tmp_path, 1)["data"]) == ["Mint.exp.0.forward", "Mint.exp.1.forward"]


def test_keys_of_a_configuration_do_what_they_say(tmp_path: Path) -> None:
    section = {
        "tensor_list": ["Mint.exp"],
        "slice": [{"dim": 0, "begin": 0, "end": 1}],
        "summary_mode": "md5",
    }
    debugger = made(tmp_path, statistics=section)
    debugger.start()
    mint.abs(mint.exp(X))
    debugger.stop()
    debugger.step()
    records = dump_of(tmp_path)["data"]
    given = records["Mint.exp.0.forward"]["input_args"][0]
    assert (given["shape"], given["data_name"]) == ([1, 3], "Mint.exp.0.forward.input.0.npy")
    assert len(given["md5"]) == 8
    assert "data_name" not in records["Mint.abs.0.forward"]["output"][0]


def test_functions_of_the_script_are_recorded_while_they_are_registered(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        return mint.add(x, x)

    mine, debugger = SimpleNamespace(double=double), made(tmp_path)
    debugger.register_custom_api(mine, "double", "Mine")
    debugger.start()
    gradient = ms.grad(lambda x: mint.sum(mine.double(x)))(X)
    debugger.stop()
    mine.double(X)
    debugger.start()
    debugger.restore_custom_api(mine, "double")
    mine.double(X)
    debugger.step()
    assert mine.double is double
    assert np.array_equal(gradient.asnumpy(), np.full((2, 3), 2, np.float32))
    records = dump_of(tmp_path)["data"]
    assert [key for key in records if "sum" not in key] == [
        "Mine.double.0.forward",
        "Mine.double.0.backward",
        "Mint.add.0.forward",
    ]
    assert records["Mine.double.0.forward"]["output"][0]["Max"] == 10.0
    assert records["Mine.double.0.backward"]["output"][0]["Max"] == 2.0


def tripled(x: Tensor) -> Tensor:
    """A function of the script that is compiled in one test."""
    return mint.mul(x, 3)


MINE = SimpleNamespace(tripled=tripled)


def test_a_registered_function_is_compiled_as_it_was(tmp_path: Path) -> None:
    debugger = made(tmp_path)
    debugger.register_custom_api(MINE, "tripled", "Mine")

    @ms.jit
    def region(x: Tensor) -> Tensor:
        return MINE.tripled(x) + 1

    debugger.start()
    for x in (X, X + 1):
        assert np.array_equal(region(x).asnumpy(), 3 * x.asnumpy() + 1)
    debugger.step()
    debugger.restore_custom_api(MINE, "tripled")
    keys = [key for key in dump_of(tmp_path)["data"] if not key.startswith("Tensor.")]
    assert len(keys) == 2
    assert all(key.startswith("Compiled.") for key in keys)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_values_are_saved_by_name_with_their_gradients(tmp_path: Path, task: str) -> None:
    debugger = made(tmp_path, level="debug", task=task)
    weight = ms.Parameter(Tensor(np.ones((3, 2), np.float32)), name="weight")

    def loss_of(x: Tensor) -> Tensor:
        hidden = mint.matmul(x, weight)
        PrecisionDebugger.save({"hidden": [hidden, 3], "weight": weight}, "inside")
        return mint.sum(hidden * 2)

    grad = ms.grad(loss_of, 0, weight)
    for _ in range(2):
        grad(X)
        debugger.save(X, "alone", save_backward=False)
        debugger.step()
    found = dump_of(tmp_path, file="debug.json")
    assert (found["level"], found["framework"], found["task"]) == ("debug", "mindspore", task)
    data = found["data"]
    assert list(data) == ["inside.0.debug", "inside_grad.0.debug", "alone.0.debug"]
    hidden, number = data["inside.0.debug"]["hidden"]
    assert (hidden["type"], hidden["Max"]) == ("mindspore.Tensor", 12.0)
    assert number == {"type": "int", "value": 3}
    gradient = data["inside_grad.0.debug"]
    assert (gradient["hidden"][0]["Max"], gradient["hidden"][1]) == (2.0, None)
    assert gradient["weight"]["Max"] == 14.0
    names = {path.name for path in (tmp_path / "dump").glob("step0/*/dump_tensor_data/*")}
    assert ("inside_grad.0.debug.weight.npy" in names) is (task == "tensor")
    assert gradient["weight"].get("data_name") in ({None} | names)
    # A gradient of the second step is not one of the first, whose hooks are gone.
    assert list(dump_of(tmp_path, 1, "debug.json")["data"]) == list(data)


def test_saved_values_are_not_told_to_be_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_debugger: Callable[[], None]
) -> None:
    debugger = made(tmp_path, level="debug")
    debugger.save(X, "x")
    debugger.step()
    one_debugger()
    assert capsys.readouterr().err == ""


def test_namespaces_of_operators_have_no_meaning_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = made(tmp_path, custom_op_namespaces=["npu"])
    for _ in range(2):
        debugger.start()
        mint.exp(X)
        debugger.step()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "operators of MindSpore have no namespaces" in said
    assert list(dump_of(tmp_path, 1)["data"]) == ["Mint.exp.0.forward"]


def test_a_range_of_tokens_is_counted_by_calls_of_the_model(tmp_path: Path) -> None:
    debugger, model = made(tmp_path), nn.Tanh()
    debugger.start(model, token_range=[1, 2])
    for _ in range(5):
        model(X)
        mint.exp(X)
    debugger.stop()
    debugger.step()
    assert [key for key in dump_of(tmp_path)["data"] if "exp" in key] == [
        "Mint.exp.0.forward",
        "Mint.exp.1.forward",
    ]
