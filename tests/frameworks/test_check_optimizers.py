"""Captured updates of optimizers through the checker: honest ones pass, planted faults are found."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_records import Lion, Records, captured, recorded
from records import replace_kernel, rows, statistics_checker

from ray_precheck.accuracy.standards.user_file import STANDARDS as KINDS
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.frameworks.pytorch.optimizers import resolve_optimizer
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

STANDARDS = ("msprobe", "auto")
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 0.1, "weight_decay": 0.1}),
    "Lion": (Lion, {"lr": 0.01, "weight_decay": 0.1}),
}
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def checker_by(standard: str, **options: Any) -> Checker:
    return statistics_checker("pytorch", standard=KINDS[standard](), **options)


def checked(records: Records, checker: Checker) -> list[TaskResult]:
    return [checker.check(records.payload(key.removesuffix(".forward"))) for key in records.texts]


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_honest_step_passes(name: str, dtype: torch.dtype, standard: str) -> None:
    kind, options = OPTIMIZERS[name]
    if dtype is torch.bfloat16 and standard == "msprobe":
        pytest.skip("a rounding of bfloat16 is larger than msprobe's limit of 1e-4")
    for result in checked(captured(kind, dtype=dtype, **options), checker_by(standard)):
        assert (result.forward, result.backward, result.message) == (
            Verdict.PASS, Verdict.NONE, "",
        )  # fmt: skip
        assert len(rows(result, "forward")) >= 8


def changed(**options: Any) -> Change:
    """Return a device that takes its steps with other hyperparameters."""

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *groups, **record: function(*[{**g, **options} for g in groups], **record)

    return change


def coupled(_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device that adds the decay to the gradient."""
    adam = resolve_optimizer(ApiName("Optimizer", "Adam", 0))
    return changed(decoupled_weight_decay=False)(adam)


def late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device whose bias correction is one step late, while it counts right."""

    def run(*groups: Any, **record: Any) -> Any:
        before = [group["state"]["step"] for group in groups]
        for group in groups:
            group["state"]["step"] = [step - 1 for step in group["state"]["step"]]
        outputs = function(*groups, **record)
        for output, steps in zip(outputs, before, strict=True):
            output["state"]["step"] = [step + 1 for step in steps]
        return outputs

    return run


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("AdamW", changed(eps=1e-3)),
        ("AdamW", coupled),
        ("AdamW", late),
        ("Adam", late),
        ("Adam", changed(amsgrad=False)),
        ("SGD", changed(nesterov=False)),
        ("SGD", changed(dampening=0.5)),
        ("RMSprop", changed(centered=False)),
        ("RMSprop", changed(alpha=0.9)),
        ("Adafactor", changed(d=2.0)),
        ("Adafactor", changed(beta2_decay=-0.5)),
        ("Lion", changed(betas=[0.99, 0.9])),
        ("Lion", changed(weight_decay=0.0)),
    ],
)
def test_a_wrong_step_is_found(
    name: str, fault: Change, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, options = OPTIMIZERS[name]
    records, checker = captured(kind, **options), checker_by(standard)
    last = records.payload(f"Optimizer.{name}.{len(records.texts) - 1}")
    assert checker.check(last).forward is Verdict.PASS
    replace_kernel(monkeypatch, checker.device(), fault)
    assert checker.check(last).forward is Verdict.ERROR


def fused_adamw(*groups: Any, power_units: float = 0.0, **_: Any) -> list[Any]:
    """AdamW as `adam_math` of aten/src/ATen/native/cuda/fused_adam_utils.cuh has it; `power_units`: the
    error of `powf`, in units in the last place."""
    outputs = []
    for group in groups:
        lr, decay, eps = (np.float32(group[name]) for name in ("lr", "weight_decay", "eps"))
        beta1, beta2 = map(np.float32, group["betas"])
        found: dict[str, list[Any]] = {"exp_avg": [], "exp_avg_sq": [], "step": []}
        params = []
        for at, (param, grad) in enumerate(zip(group["params"], group["grads"], strict=True)):
            state = {name: values[at] for name, values in group.get("state", {}).items()}
            p, g = param.detach().numpy(), grad.numpy()
            m, v = (np.asarray(state.get(name, 0 * grad)) for name in ("exp_avg", "exp_avg_sq"))
            t = float(state.get("step", 0)) + 1
            powers = [np.float32(float(beta) ** t) for beta in (beta1, beta2)]
            powers = [x + np.float32(power_units * (t > 1)) * np.spacing(x) for x in powers]
            p = p - lr * decay * p
            m, v = fma(beta1, m, fma(-beta1, g, g)), fma(beta2, v, fma(-beta2, g * g, g * g))
            root = np.sqrt(v) / np.sqrt(np.float32(1) - powers[1]) + eps
            params.append(torch.tensor(p - lr / (np.float32(1) - powers[0]) * m / root))
            for name, value in zip(found, (m, v, np.float32(t)), strict=True):
                found[name].append(torch.tensor(value))
        outputs.append({"params": params, "state": found})
    return outputs


def fma(a: Any, b: Any, c: Any) -> Any:
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def test_a_fused_kernel_has_its_numbers_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - 0.999 is off by 1.3e-5 there, as is what is taken from 1 of the power in the second step."""
    kind, options = OPTIMIZERS["AdamW"]

    def verdicts(change: Change, *, fused: bool = True) -> set[Verdict]:
        checker = checker_by("auto")
        with monkeypatch.context() as patched:
            replace_kernel(patched, checker.device(), change)
            return {x.forward for x in checked(captured(kind, fused=fused, **options), checker)}

    for units in (0.0, 1.0, -1.0):
        assert verdicts(lambda _, units=units: partial(fused_adamw, power_units=units)) == {
            Verdict.PASS
        }
    assert verdicts(lambda function: function) == {Verdict.PASS}
    assert Verdict.ERROR in verdicts(lambda _: fused_adamw, fused=False)
    for fault in ({"betas": [0.9, 0.99]}, {"weight_decay": 0.0}, {"eps": 1e-6}, {"lr": 0.0101}):
        assert verdicts(lambda _, fault=fault: changed(**fault)(fused_adamw)) == {Verdict.ERROR}


def real_mode(folder: Path) -> Checker:
    return Checker(CheckSettings("pytorch", "tensor", folder, tests_dump=True), "cpu")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_captured_outputs_are_judged(name: str, tmp_path: Path) -> None:
    kind, options = OPTIMIZERS[name]
    records, checker = captured(kind, folder=tmp_path, **options), real_mode(tmp_path)
    assert {result.forward for result in checked(records, checker)} == {Verdict.PASS}
    file = tmp_path / f"Optimizer.{name}.2.forward.output.0.params.0.pt"
    torch.save(torch.load(file) + torch.eye(32, 16) * 0.01, file)
    result = checker.check(records.payload(f"Optimizer.{name}.2"))
    wrong = [check.name[-1] for check in result.checks if check.verdict is Verdict.ERROR]
    assert (result.forward, wrong) == (Verdict.ERROR, ["0"])


def test_the_signs_that_rounding_decides_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 some sums of Lion nearly cancel in every tensor of a usual size."""
    param = torch.nn.Parameter(torch.zeros(256, 256, dtype=torch.bfloat16))
    records, optimizer = Records(), Lion([param], lr=0.125)
    with recorded(records):
        for seed in range(2):
            torch.manual_seed(seed)
            param.data.zero_()  # A step of a power of two is exact then.
            param.grad = torch.randn(param.shape).mul(1e-2).to(param.dtype)
            optimizer.step()
    checker, payload = checker_by("msprobe"), records.payload("Optimizer.Lion.1")
    assert checker.check(payload).forward is Verdict.PASS
    with monkeypatch.context() as patched:
        patched.setattr("ray_precheck.accuracy.ambiguous._ROUNDINGS", 0.0)
        assert checker.check(payload).forward is Verdict.ERROR

    def flipped(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*groups: Any, **record: Any) -> Any:
            found = function(*groups, **record)
            param = found[0]["params"][0]
            param[0] = -param[0]
            return found

        return run

    replace_kernel(monkeypatch, checker.device(), flipped)
    assert checker.check(payload).forward is Verdict.ERROR


def edited(payload: TaskPayload, edit: Callable[[dict[str, Any]], None]) -> TaskPayload:
    record = json.loads(payload.forward or b"")
    edit(record)
    return TaskPayload(0, payload.name, json.dumps(record).encode(), None)


def without_statistics(value: Any) -> None:
    """Take the statistics out of a record, as summary mode md5 has it."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict) and "Max" in each:
            each.update(Max=None, Min=None, Mean=None, Norm=None)
        elif isinstance(each, dict | list):
            without_statistics(each)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_without_statistics_is_drawn_with_sense(name: str) -> None:
    """Second moments of negative numbers would be NaN on both sides, and compare nothing."""
    kind, options = OPTIMIZERS[name]
    payload = edited(captured(kind, **options).payload(f"Optimizer.{name}.2"), without_statistics)
    result = checker_by("auto").check(payload)
    assert result.forward is Verdict.PASS
    assert [check.name for check in result.checks if check.metrics and check.metrics.left_out] == []


def test_what_has_no_reference_is_skipped() -> None:
    class LBFGS(torch.optim.LBFGS):
        pass

    def foreign(record: dict[str, Any]) -> None:
        record["input_kwargs"]["optimizer"]["value"] = "transformers.optimization.Adafactor"

    checker = checker_by("msprobe")
    payload = captured(torch.optim.Adafactor, steps=1).payload("Optimizer.Adafactor.0")
    (other,) = checked(captured(torch.optim.Adagrad, steps=1), checker)
    result = checker.check(edited(payload, foreign))
    assert (result.forward, other.forward) == (Verdict.SKIP, Verdict.SKIP)
    assert "not of torch.optim.Adafactor" in result.message
    assert "Optimizer.Adagrad has no bench: the updates of SGD, Adam, AdamW" in other.message


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record["input_args"].append(None),
        lambda record: record["input_args"][0].update(lr={"type": "str", "value": "fast"}),
        lambda record: record["input_args"][0].update(betas=None),
        lambda record: record["input_args"][0].update(params=[]),
        lambda record: record["input_args"][0].update(state=[]),
        lambda record: record["input_args"][0]["state"].update(step=[None] * 4),
        lambda record: record["input_args"][0]["state"].pop("exp_avg"),
        lambda record: record["input_kwargs"].update(sparse={"type": "int", "value": 3}),
        lambda record: record["input_kwargs"].update(options=[1]),
        lambda record: record["input_kwargs"].update(unheard_of=[1]),
        lambda record: record.update(input_args=[]),
    ],
)
@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_a_record_in_disorder_is_no_fault_of_the_device(
    name: str, edit: Callable[[dict[str, Any]], None]
) -> None:
    kind, options = OPTIMIZERS[name]
    records = captured(kind, **options)
    try:
        payload = edited(records.payload(f"Optimizer.{name}.2"), edit)
    except KeyError:
        pytest.skip("it has no such state")
    assert checker_by("auto").check(payload).forward in (Verdict.SKIP, Verdict.PASS)
