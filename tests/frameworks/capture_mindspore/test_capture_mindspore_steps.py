"""Steps, ranks, graph mode and compiled regions of a MindSpore program."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from ray_precheck.capture import Capture
from ray_precheck.capture.account import closing_sentence
from ray_precheck.capture.mindspore import recorder as recorder_module
from ray_precheck.capture.mindspore.probe import MindSporeProbe
from ray_precheck.capture.session import Session
from ray_precheck.capture.settings import capture_settings

Captured = Callable[..., dict[str, Any]]
X = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))


class Net(nn.Cell):
    """One matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ms.Parameter(Tensor(np.ones((3, 2), np.float32)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return mint.sum(mint.matmul(x, self.weight))


def keys_of(folder: Path) -> list[str]:
    return list(json.loads((folder / "dump.json").read_text())["data"])


def test_a_step_ends_with_the_step_of_the_first_optimizer(tmp_path: Path) -> None:
    net = Net()
    optimizers = [nn.SGD(net.trainable_params(), 0.1), nn.SGD(net.trainable_params(), 0.1)]
    grad = ms.value_and_grad(net, None, net.trainable_params())
    before = nn.Cell.__call__
    with Capture(tmp_path / "dump", framework="mindspore", steps="0,2") as capture:
        for step in range(4):
            mint.exp(X) if step == 2 else mint.log(X)
            _, gradients = grad(X)
            for optimizer in optimizers:
                optimizer(gradients)
    assert nn.Cell.__call__ is before
    assert [folder.parent.name for folder in capture.captured] == ["step0", "step2"]
    assert "Mint.log.0.forward" in keys_of(capture.captured[0])
    keys = keys_of(capture.captured[1])
    assert "Mint.exp.0.forward" in keys
    assert "Mint.matmul.0.backward" in keys


def test_a_step_ends_with_the_next_call_of_the_model(tmp_path: Path) -> None:
    net = Net()
    with Capture(tmp_path / "dump", framework="mindspore", step_by="forward") as capture:
        for _ in range(3):
            net(X)
    assert [keys_of(folder) for folder in capture.captured] == [
        ["Mint.matmul.0.forward", "Mint.sum.0.forward"]
    ] * 3


def test_functions_are_their_own_between_captured_steps(tmp_path: Path) -> None:
    matmul, add = mint.matmul, Tensor.__add__
    options: dict[str, Any] = {"framework": "mindspore", "step_by": "manual", "steps": "1"}
    with Capture(tmp_path / "dump", **options) as capture:
        assert mint.matmul is matmul
        capture.step()
        assert mint.matmul is not matmul
        capture.step()
        assert mint.matmul is matmul
        assert Tensor.__add__ is add


def test_the_folder_has_the_rank_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_ID", "3")
    with Capture(tmp_path / "dump", framework="mindspore", step_by="manual") as capture:
        mint.exp(X)
    assert capture.captured[0].name == "rank3"


def test_graph_mode_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    with Capture(tmp_path / "dump", framework="mindspore", step_by="manual") as capture:
        pass
    assert capture.captured == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "graph mode" in said
    assert "PYNATIVE_MODE" in said


def test_a_model_that_runs_in_a_compiled_function_is_said_to_be_there(tmp_path: Path) -> None:
    net = Net()
    settings = capture_settings(path=tmp_path / "dump")
    session = Session(settings, MindSporeProbe(), tell=lambda _: None)
    session.start(at_first_forward=True)

    @ms.jit
    def whole(x: Tensor) -> Tensor:
        return net(x)

    whole(X)
    session.stop()
    said = closing_sentence(settings, [session.account])
    assert "ran in the function test_a_model_that_runs_in_a" in said
    assert "MS_JIT=0 in the environment" in said


def test_graph_mode_in_the_middle_of_a_step_ends_the_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, matmul = Net(), mint.matmul
    with Capture(tmp_path / "dump", framework="mindspore", step_by="manual"):
        mint.exp(X)
        ms.set_context(mode=ms.GRAPH_MODE)
        assert net(X).asnumpy() == 30.0
        assert mint.matmul is matmul
    assert "graph mode" in capsys.readouterr().err


def test_a_compiled_function_is_one_record(captured: Captured) -> None:
    @ms.jit
    def twice(x: Tensor) -> Tensor:
        return mint.add(x, x)

    given: list[Any] = []
    records = captured(lambda: [mint.exp(X), given.append(twice(X)), mint.exp(X)])
    assert np.array_equal(given[0].asnumpy(), 2 * X.asnumpy())
    first, compiled, last = records
    assert (first, last) == ("Mint.exp.0.forward", "Mint.exp.1.forward")
    assert compiled.startswith("Compiled.")
    assert records[compiled]["compiled"] is True
    assert records[compiled]["output"][0]["Max"] == 10.0


def test_a_fault_in_the_capture_leaves_the_program_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> str:
        raise ValueError("a fault")

    exp = mint.exp
    with Capture(tmp_path / "dump", framework="mindspore", step_by="manual"):
        monkeypatch.setattr(recorder_module.MindSporeRecorder, "before", fault)
        assert mint.exp(X).asnumpy()[0, 0] == 1.0
        assert mint.exp is exp
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ValueError: a fault" in said


def test_a_call_that_raises_raises_as_it_does_without_capture(captured: Captured) -> None:
    def action() -> None:
        with pytest.raises((ValueError, RuntimeError)) as raised:
            mint.matmul(X, X).asnumpy()
        assert "ray_precheck" not in str(raised.value)
        mint.exp(X)

    assert "Mint.exp.0.forward" in captured(action)


def test_another_process_writes_under_its_own_number(captured: Captured, tmp_path: Path) -> None:
    captured(lambda: mint.exp(X))
    (folder,) = (tmp_path / "dump" / "step0").iterdir()
    assert folder.name == f"proc{os.getpid()}"
