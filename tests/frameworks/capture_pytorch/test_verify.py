"""A step of PyTorch is run with and without capture: what changes it is found and named."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ray_precheck.capture import Capture, verify  # noqa: E402
from ray_precheck.capture.pytorch.probe import TorchStep  # noqa: E402
from ray_precheck.capture.pytorch.recorder import TorchRecorder  # noqa: E402
from ray_precheck.capture.pytorch.tensors import memory, text  # noqa: E402
from ray_precheck.capture.pytorch.tensors.many import LOOKED_AT_BYTES  # noqa: E402
from ray_precheck.capture.pytorch.tensors.memory import Glimpses  # noqa: E402
from ray_precheck.capture.verifying.verdict import Looking  # noqa: E402
from ray_precheck.errors import UsageError  # noqa: E402

pytestmark = pytest.mark.frameworks


class Training:
    """A model with dropout and a buffer, its optimizer, and a step of both."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.ReLU(),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 2),
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.1)
        self.batch = torch.randn(3, 4)

    def step(self) -> Any:
        loss = self.net(self.batch).square().sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@pytest.fixture
def training() -> Training:
    return Training()


def verified(training: Training, **settings: Any) -> Any:
    return verify(training.step, training.net, training.optimizer, **settings)


def planted(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str, fault: Callable[..., object]
) -> None:
    """Let a method of the recorder change something where it handles a key; `fault` gets its values."""
    original = getattr(TorchRecorder, name)

    def faulty(self: Any, found: str, value: Any, *more: Any, **kwargs: Any) -> Any:
        if found.startswith(key):
            fault(value, *more)
        return original(self, found, value, *more, **kwargs)

    monkeypatch.setattr(TorchRecorder, name, faulty)


def one_ulp(tensor: Any) -> None:
    """Move each element to the next number, and tell nobody."""
    tensor.data.copy_(torch.nextafter(tensor.data, torch.tensor(torch.inf)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"level": "mix", "sketch": True},
        {"level": "L0"},
        {"task": "tensor", "summary_mode": "md5", "gradients": "node"},
    ],
    ids=str,
)
def test_an_honest_capture_changes_nothing(training: Training, settings: dict[str, Any]) -> None:
    verdict = verified(training, **settings)
    assert verdict.changed_nothing, verdict
    assert "1 loss, 1 output of the model, 1 returned value, 6 gradients, 6 parameters" in str(
        verdict
    )


def test_the_training_goes_on_as_if_nothing_had_run(training: Training) -> None:
    other = Training()
    before = torch.get_rng_state()
    verified(training)
    assert torch.equal(torch.get_rng_state(), before)
    states = []
    for each in (training, other):
        torch.manual_seed(1)
        loss = each.step()
        states.append([loss, *each.net.state_dict().values()])
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))
    assert not training.optimizer.state_dict()["state"].keys() - {0, 1, 2, 3, 4, 5}
    assert training.optimizer.state_dict()["state"][0]["step"] == 1


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_record_that_changes_the_last_bit_of_an_output_is_named(
    training: Training, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    planted(monkeypatch, "after", "Functional.relu.0", one_ulp)
    verdict = verified(training, level=level)
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert verdict.operator == "Functional.relu.0.forward"
    # The last bit of a hidden value may be rounded away in the loss, and is not in all of these.
    assert " differ; the first operator is " in verdict.sentence


def test_a_step_that_raises_with_capture_alone_is_changed(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, "after", "Functional.relu.0", lambda output: output.detach().mul_(2))
    verdict = verified(training)
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "how the step ends (RuntimeError: one of the variables" in verdict.sentence
    assert verdict.operator == "Functional.relu.0.forward"


def test_a_record_that_takes_a_random_number_is_named(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last dropout it changes neither loss nor gradients, and is found all the same."""
    planted(monkeypatch, "after", "Functional.linear.1", lambda _: torch.rand(1))
    verdict = verified(training)
    assert verdict.operator == "Functional.linear.1.forward"
    assert "the random state of torch differs" in verdict.sentence


def test_a_record_that_changes_a_gradient_is_named(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, "around", "Functional.relu.0", lambda _, passed_on: one_ulp(passed_on[0]))
    verdict = verified(training)
    assert verdict.operator == "Functional.relu.0.backward"
    assert "the gradient of 0." in verdict.sentence
    assert "loss" not in verdict.sentence


def test_a_module_that_changes_its_output_is_seen_at_the_next_operator(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, "after", "Module.1.ReLU", one_ulp)
    verdict = verified(training, level="mix")
    assert verdict.operator == "Functional.batch_norm.0.forward"
    assert "which got something else" in verdict.sentence


def test_a_record_that_changes_a_parameter_is_found(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(groups: Any) -> None:
        one_ulp(training.net[4].bias)

    planted(monkeypatch, "after", "Optimizer.Adam.0", fault)
    verdict = verified(training)
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "looking changed something: 4.bias after the step differs" in verdict.sentence


def test_hooks_that_change_something_are_told(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TorchStep.resume

    def resume(self: Any) -> None:
        torch.rand(1)
        original(self)

    monkeypatch.setattr(TorchStep, "resume", resume)
    assert "the hooks do it by themselves" in verified(training).sentence


def test_a_step_that_does_not_repeat_itself_is_told(training: Training) -> None:
    scales = iter(range(1, 9))

    def step() -> None:
        (torch.relu(training.net(training.batch)) * next(scales)).sum().backward()

    verdict = verify(step, training.net)
    assert verdict.looking is Looking.UNKNOWN
    assert verdict.operator == "Tensor.__mul__.0.forward"


def test_memory_that_nobody_has_filled_is_no_difference(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        noise = torch.empty(3, 2).normal_()
        torch.tanh(training.net(training.batch) + noise).sum().backward()

    planted(monkeypatch, "after", "Torch.tanh.0", one_ulp)
    assert verify(step, training.net).operator == "Torch.tanh.0.forward"


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_are_verified(training: Training, reentrant: bool) -> None:
    def step() -> Any:
        batch = training.batch.clone().requires_grad_()
        given = torch.utils.checkpoint.checkpoint(training.net, batch, use_reentrant=reentrant)
        given.sum().backward()

    verdict = verify(step, training.net)
    assert verdict.changed_nothing, verdict
    # A pass within a pass is no loss of its own.
    assert "1 loss" in str(verdict)


def test_an_optimizer_with_a_closure_is_verified(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.LBFGS(training.net.parameters(), max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = training.net(training.batch).sum()
        loss.backward()
        return loss

    def step() -> Any:
        return optimizer.step(closure)

    assert verify(step, training.net, optimizer).changed_nothing
    planted(monkeypatch, "after", "Functional.relu.1", one_ulp)
    assert verify(step, training.net, optimizer).operator == "Functional.relu.1.forward"


def test_several_models_and_optimizers_are_put_back(training: Training) -> None:
    other = torch.nn.Linear(2, 2)
    weight = other.weight.detach().clone()
    optimizer = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        other(training.net(training.batch)).sum().backward()
        for each in (training.optimizer, optimizer):
            each.step()

    verdict = verify(step, [training.net, other], [training.optimizer, optimizer])
    assert verdict.changed_nothing, verdict
    assert "8 gradients" in str(verdict)
    assert torch.equal(other.weight, weight)
    assert other.weight.grad is None
    assert not optimizer.state


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 3}, "step is of type int"),
        ({"model": 3}, "the model is of type int; expected torch.nn.Module"),
        ({"model": None}, "the model is missing"),
        ({"optimizer": "adam"}, "the optimizer is of type str"),
        ({"path": "dump"}, "verify leaves no dump"),
        ({"level": "L9"}, "level is 'L9'"),
    ],
)
def test_wrong_arguments_are_told(training: Training, change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"step": training.step, "model": training.net, **change}
    with pytest.raises(UsageError, match=said):
        verify(**given)


def test_what_the_step_raises_comes_through_and_the_state_is_put_back(training: Training) -> None:
    weight = training.net[0].weight.detach().clone()

    def step() -> None:
        training.step()
        raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        verify(step, training.net, training.optimizer)
    assert torch.equal(training.net[0].weight, weight)
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_module_trains_under_a_capture(training: Training, tmp_path: Path) -> None:
    """torch.compile reads the hooks by which a capture finds the steps."""
    compiled = torch.compile(training.net, backend="eager")

    def step() -> None:
        compiled(training.batch).sum().backward()
        training.optimizer.step()

    with Capture(tmp_path / "dump", steps="0", framework="pytorch") as capture:
        step()
        step()
    assert len(capture.captured) == 1
    assert verify(step, training.net, training.optimizer).changed_nothing


@pytest.mark.parametrize("settings", [{}, {"task": "tensor", "level": "mix"}, {"level": "L0"}])
def test_the_dump_holds_what_the_tensors_held(training: Training, settings: dict[str, Any]) -> None:
    verdict = verified(training, **settings)
    assert verdict.changed_nothing, verdict
    assert re.search(r"the dump holds what \d\d+ tensors held", str(verdict))


def test_a_mask_of_infinities_is_held_by_the_dump(training: Training) -> None:
    """Its Norm is infinite, and no room for rounding can be computed from that."""
    mask = torch.zeros(3, 2).masked_fill(torch.tensor([False, True]), -torch.inf)

    def step() -> Any:
        torch.add(mask, 1.0)
        return training.step()

    verdict = verify(step, training.net, training.optimizer)
    assert verdict.changed_nothing, verdict


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_dump_that_holds_other_values_is_named(
    training: Training, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """The memory is written without a version, and nothing looks at it; small ones are always looked at."""
    for module in (text, memory):
        monkeypatch.setattr(module, "glimpse_of", lambda _: (lambda _: b"", b""))
    monkeypatch.setattr(Glimpses, "of", lambda self, _: (lambda _: b"", b""))
    kept = torch.ones(LOOKED_AT_BYTES)  # four times what is looked at each time

    def step() -> Any:
        torch.sum(kept)
        ctypes.memset(kept.data_ptr() + 128, 0, 64)  # between two pieces that a glimpse has
        torch.cumsum(kept, 0)
        kept.fill_(1)
        return training.step()

    verdict = verify(step, training.net, training.optimizer, task=task)
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "the dump holds other values than the tensors held" in str(verdict)
    assert "Torch.cumsum.0.forward input.0" in str(verdict)
