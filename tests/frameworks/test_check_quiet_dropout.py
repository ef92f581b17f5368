"""Captures in which dropout was switched off, as msprobe's `seed_all(rm_dropout=True)` does."""

import json
from pathlib import Path
from typing import Any

import pytest
from records import Element, call, element, replace_kernel, statistics_checker, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.check.random.judge import IDENTITY, WITHOUT
from ray_precheck.check.settings import CheckSettings
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

PASS, ERROR, SKIP = Verdict.PASS, Verdict.ERROR, Verdict.SKIP
SHAPES: dict[str, tuple[int, ...]] = {
    "Functional.dropout": (16, 24),
    "Functional.dropout1d": (4, 8, 16),
    "Functional.dropout2d": (2, 8, 8, 8),
    "Functional.dropout3d": (2, 4, 8, 8, 4),
    "Functional.alpha_dropout": (16, 24),
    "Functional.feature_alpha_dropout": (4, 8, 16),
    "Torch.dropout_": (16, 24),
    "VF.feature_dropout": (4, 8, 16),
}


class Capture:
    """Tensors saved as msprobe saves them, and the record that names them."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._count = 0

    def saved(self, value: Any, *, grad: bool = False) -> Any:
        import torch

        self._count += 1
        file = f"{self._count}.pt"
        torch.save(value.detach().contiguous(), self.folder / file)
        dtype = str(value.dtype).removeprefix("torch.")
        return Element(**tensor(*value.shape, dtype=dtype, grad=grad), data_name=file)

    def checked(
        self,
        args: list[Any],
        outputs: list[Any],
        grads: tuple[list[Any], list[Any]] | None = None,
        framework: str = "pytorch",
        **kwargs: Any,
    ) -> TaskResult:
        forward = {
            "input_args": [element(arg) for arg in args],
            "input_kwargs": {key: element(value) for key, value in kwargs.items()},
            "output": outputs,
        }
        backward = None if grads is None else {"input": grads[0], "output": grads[1]}
        payload = TaskPayload(
            0,
            f"{self.name}.0",
            json.dumps(forward).encode(),
            None if backward is None else json.dumps(backward).encode(),
        )
        settings = CheckSettings(framework, "tensor", self.folder, tests_dump=True)
        return Checker(settings, "cpu").check(payload)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_captured_output_that_is_its_input_passes_and_says_why(
    tmp_path: Path, name: str, dtype: str
) -> None:
    import torch

    capture = Capture(tmp_path, name)
    x, incoming = (torch.randn(*SHAPES[name]).to(getattr(torch, dtype)) for _ in range(2))
    gradients = [capture.saved(incoming)], [capture.saved(incoming)]
    args = [capture.saved(x, grad=True), 0.5, True]
    result = capture.checked(args, [capture.saved(x)], gradients)
    assert (result.forward, result.backward, result.message) == (PASS, PASS, IDENTITY)
    forward, backward = result.checks
    assert (forward.verdict, forward.message) == (PASS, IDENTITY)
    assert (backward.verdict, backward.message) == (
        PASS,
        "the gradient is the incoming one exactly",
    )
    assert forward.metrics is not None
    assert (forward.metrics.cosine, forward.metrics.max_abs_err) == (pytest.approx(1.0), 0.0)


def test_a_gradient_of_the_operator_before_is_not_compared(tmp_path: Path) -> None:
    import torch

    capture = Capture(tmp_path, "Functional.dropout")
    x, incoming = torch.randn(8, 8), torch.randn(8, 8)
    for passed_on in (incoming * (x > 0), torch.randn(3)):
        gradients = [capture.saved(incoming)], [capture.saved(passed_on)]
        result = capture.checked([capture.saved(x, grad=True), 0.5], [capture.saved(x)], gradients)
        assert (result.forward, result.backward) == (PASS, SKIP)
        assert "the captured gradient is that of the operator before it" in result.message


def test_one_element_off_is_no_identity(tmp_path: Path) -> None:
    import torch

    capture = Capture(tmp_path, "Functional.dropout")
    x = torch.randn(16, 24)
    out = x.clone()
    out[3, 5] += 1.0
    result = capture.checked([capture.saved(x), 0.5], [capture.saved(out)])
    assert result.forward is ERROR
    assert IDENTITY not in result.message


def test_a_device_whose_dropout_does_nothing_stays_in_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checker = statistics_checker("pytorch")
    device: Any = checker.device()
    replace_kernel(monkeypatch, device, lambda _: lambda x, p, training: x.clone())
    for name in ("dropout", "dropout1d", "alpha_dropout"):
        result = checker.check(call(f"Functional.{name}", tensor(16, 24, 8), 0.5, True))
        assert result.forward is ERROR, name
        assert IDENTITY not in result.message


def attention_arguments(capture: Capture) -> tuple[list[Any], list[Any]]:
    import torch

    q, k, v = (torch.randn(12, 2, 8) for _ in range(3))
    weights = torch.randn(24, 8) / 3, torch.randn(24), torch.randn(8, 8) / 3, torch.randn(8)
    args = [q, k, v, 8, 2, weights[0], weights[1], None, None, False, 0.5, weights[2], weights[3]]
    saved = [capture.saved(arg) if torch.is_tensor(arg) else arg for arg in args]
    return args, saved


@pytest.mark.parametrize("is_off", [True, False])
def test_attention_of_many_heads_that_dropped_is_not_compared_element_by_element(
    tmp_path: Path, is_off: bool
) -> None:
    import torch

    capture = Capture(tmp_path, "Functional.multi_head_attention_forward")
    args, saved = attention_arguments(capture)
    args[10] = 0.0 if is_off else 0.5
    outputs = torch.nn.functional.multi_head_attention_forward(*args, training=True)
    result = capture.checked(saved, [capture.saved(out) for out in outputs], training=True)
    if is_off:
        assert (result.forward, result.message) == (PASS, WITHOUT)
        assert [check.message for check in result.checks] == [WITHOUT, WITHOUT]
    else:
        assert result.forward is SKIP
        assert "it drops at random between its steps" in result.message


@pytest.mark.parametrize("standard", ["msprobe", "auto"])
def test_a_device_that_drops_within_attention_is_never_passed(standard: str) -> None:
    from ray_precheck.accuracy.standards.user_file import STANDARDS

    checker = statistics_checker("pytorch", standard=STANDARDS[standard]())
    x, weight = tensor(12, 2, 8), tensor(24, 8)
    rest = [8, 2, weight, tensor(24), None, None, False]
    for probability, training, expected in [
        (0.5, True, SKIP),
        (0.5, False, PASS),
        (0.0, True, PASS),
    ]:
        args = [x, x, x, *rest, probability, tensor(8, 8), tensor(8), training]
        result = checker.check(call("Functional.multi_head_attention_forward", *args))
        assert result.forward is expected, (probability, training, result.message)
        assert len(result.checks) == (2 if expected is PASS else 0)
