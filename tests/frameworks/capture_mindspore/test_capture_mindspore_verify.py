"""A step of MindSpore is run with and without capture: what changes it is found and named."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, mint, nn, ops

from ray_precheck.capture import verify
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.mindspore.verifying import MindSporeTracingProbe
from ray_precheck.capture.settings import capture_settings
from ray_precheck.capture.verifying.verdict import (
    Looking,
    LookingVerdict,
    TracedRun,
    Traces,
    verify_runs,
)
from ray_precheck.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
X = Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))


class Net(nn.Cell):
    """Two layers, with a dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(4, 8), nn.Dense(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        hidden = ops.dropout(mint.nn.functional.relu(self.first(x)), p=0.5)
        return mint.sum(mint.square(self.last(hidden)))


def train_once(scale: float = 1.0) -> None:
    """Make the same step each time."""
    ms.set_seed(1)
    ms.manual_seed(1)
    net = Net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    scaler = amp.StaticLossScaler(4.0)
    grad = ms.value_and_grad(lambda x: scaler.scale(net(x) * scale), None, net.trainable_params())
    _, gradients = grad(X)
    optimizer(scaler.unscale(gradients))


@pytest.fixture
def verified(tmp_path: Path) -> Callable[..., LookingVerdict]:
    """Verify a step that a function makes; runs of scripts do it in processes of their own."""

    def run_all(step: Callable[[], object] = train_once, **options: Any) -> LookingVerdict:
        settings = capture_settings(path=tmp_path, **options)

        def run(how: TracedRun) -> Traces:
            probe, failures = MindSporeTracingProbe(how), list[str]()
            probe.watch_steps(lambda: traced.finish(), lambda: None)
            traced = probe.begin(settings, tmp_path / how.value, None, failures.append)
            step()
            probe.unwatch_steps()
            assert not failures
            assert probe.trace is not None
            return {"": probe.trace}

        return verify_runs(run)

    return run_all


Verified = Callable[..., LookingVerdict]


def planted(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str, fault: Callable[..., object]
) -> None:
    """Let a method of the recorder change something where it handles a key; `fault` gets its values."""
    original = getattr(MindSporeRecorder, name)

    def faulty(self: Any, found: str, value: Any, *more: Any) -> Any:
        if found.startswith(key):
            fault(value, *more)
        return original(self, found, value, *more)

    monkeypatch.setattr(MindSporeRecorder, name, faulty)


def one_ulp(tensor: Any) -> None:
    """Move each element to the next number."""
    values = np.nextafter(tensor.asnumpy(), np.float32(np.inf))
    tensor.assign_value(Tensor(values))


@pytest.mark.parametrize(
    "settings",
    [{}, {"level": "mix", "sketch": True}, {"level": "L0", "task": "tensor"}],
    ids=str,
)
def test_an_honest_capture_changes_nothing(verified: Verified, settings: dict[str, Any]) -> None:
    verdict = verified(**settings)
    assert verdict.changed_nothing, verdict
    assert "1 output of the model, 4 gradients, 4 parameters after the step and the random" in str(
        verdict
    )


def test_a_record_that_changes_the_last_bit_of_an_output_is_named(
    verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, "after", "MintFunctional.relu.0", one_ulp)
    verdict = verified()
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert verdict.operator == "MintFunctional.relu.0.forward"


def test_a_record_that_changes_a_gradient_is_named(
    verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(
        monkeypatch, "around", "MintFunctional.relu.0", lambda _, passed_on: one_ulp(passed_on[0])
    )
    verdict = verified()
    assert verdict.operator == "MintFunctional.relu.0.backward"
    assert "the gradient of first." in verdict.sentence


def test_a_record_that_takes_a_random_number_is_found(
    verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the dropout it changes neither output nor gradients."""
    planted(monkeypatch, "after", "Mint.sum.0", lambda _: ms.default_generator.manual_seed(7))
    verdict = verified()
    assert verdict.operator == "Mint.sum.0.forward"
    assert "the random state of MindSpore differs" in verdict.sentence


def test_a_step_that_does_not_repeat_itself_is_told(verified: Verified) -> None:
    scales = iter(range(1, 9))
    verdict = verified(lambda: train_once(float(next(scales))))
    assert verdict.looking is Looking.UNKNOWN
    assert verdict.operator == "Tensor.__mul__.0.forward"


class Training:
    """A model, its optimizer with momentum, and a step of both."""

    def __init__(self) -> None:
        ms.set_seed(1)
        self.net = Net()
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.1, 0.9)
        self.grad = ms.value_and_grad(self.net, None, self.net.trainable_params())

    def step(self) -> Any:
        loss, gradients = self.grad(X)
        self.optimizer(gradients)
        return loss


def test_a_step_that_is_a_function_is_verified_from_the_same_state() -> None:
    training, other = Training(), Training()
    verdict = verify(training.step, training.net, training.optimizer, level="mix")
    assert verdict.changed_nothing, verdict
    assert "1 output of the model, 1 returned value, 4 gradients, 4 parameters" in str(verdict)
    # The training goes on as if nothing had run, its random numbers included.
    for each in (training, other):
        ms.set_seed(1)
        each.loss = each.step()
    states = zip(training.optimizer.get_parameters(), other.optimizer.get_parameters(), strict=True)
    assert training.loss.asnumpy() == other.loss.asnumpy()
    assert all(np.array_equal(one.asnumpy(), two.asnumpy()) for one, two in states)


def test_random_numbers_behind_a_verification_are_those_before_it() -> None:
    training = Training()
    drawn = []
    for verified_first in (False, True):
        ms.set_seed(1)
        ops.dropout(X, p=0.5)
        if verified_first:
            verify(training.step, training.net, training.optimizer)
        drawn.append(ops.dropout(X, p=0.5)[0].asnumpy())
    assert np.array_equal(*drawn)


def test_a_function_with_a_fault_in_its_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    planted(monkeypatch, "after", "MintFunctional.relu.0", one_ulp)
    verdict = verify(training.step, training.net, training.optimizer)
    assert verdict.operator == "MintFunctional.relu.0.forward"


def test_a_kernel_with_a_state_of_its_own_does_not_repeat_itself() -> None:
    net = nn.SequentialCell(nn.Dense(4, 64), nn.Dropout(p=0.5)).set_train()
    verdict = verify(lambda: net(X), net)
    assert verdict.looking is Looking.UNKNOWN
    assert "the step does not repeat itself" in verdict.sentence


@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        ([nn.ReLU(), 3], None, "the model is of type int; expected mindspore.nn.Cell"),
        (nn.ReLU(), "adam", "the optimizer is of type str; expected mindspore.nn.Optimizer"),
    ],
)
def test_wrong_arguments_are_told(model: Any, optimizer: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        verify(train_once, model, optimizer)


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
grad = ms.value_and_grad(
    lambda x: mint.sum(ops.dropout(net(x), p=0.5)), None, net.trainable_params()
)
for step in range(3):
    print("step", step, flush=True)
    optimizer(grad(Tensor(np.ones((3, 4), np.float32)))[1])
"""


def test_the_command_runs_a_script_to_the_end_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["-o", "dump", "--verify", "--steps", "1", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "ray_precheck", "capture", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "looking changed nothing: with " in done.stdout
    assert "1 output of the model, 4 gradients, 4 parameters after the step" in done.stdout
    assert done.stdout.count("step 1\n") == 3
    assert "step 2" not in done.stdout
    assert [path.parent.parent.name for path in tmp_path.glob("dump/*/*/dump.json")] == ["step1"]
