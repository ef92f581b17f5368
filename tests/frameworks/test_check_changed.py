"""What a call changes beside its outputs is compared as they are: running statistics, `out`, states."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from records import (
    NEEDS_MINDSPORE,
    call,
    leaf,
    ms_tensor,
    replace_kernel,
    statistics_checker,
    tensor,
    whole,
)

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.operators.effects import CHANGES
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload

pytestmark = pytest.mark.frameworks
STANDARD = pytest.mark.parametrize("standard", ["msprobe", "auto"])
HALVES = ("bfloat16", "float16")
Kernel = Callable[..., Any]


def batch_norm(dtype: str = "float32", statistics: str = "float32", **more: Any) -> TaskPayload:
    """A call as msprobe records it: with its statistics before the call, and none after it."""
    x = leaf(8, 5, 6, 6, dtype=dtype, low=-3.0, high=5.0)
    mean, var = (tensor(5, dtype=statistics, low=low, high=2.0) for low in (-1.0, 0.5))
    weights = (leaf(5, dtype=statistics), leaf(5, dtype=statistics))
    return call(
        "Functional.batch_norm",
        *(x, mean, var, *weights),
        grads=[tensor(8, 5, 6, 6, dtype=dtype)],
        **{"training": True, "momentum": 0.1, "eps": 1e-5, **more},
    )


def instance_norm(dtype: str = "float32", **more: Any) -> TaskPayload:
    x = leaf(4, 5, 6, 6, dtype=dtype, low=-3.0, high=5.0)
    mean, var = (tensor(5, low=low, high=2.0) for low in (-1.0, 0.5))
    options = {"use_input_stats": True, "momentum": 0.2, **more}
    output = tensor(4, 5, 6, 6, dtype=dtype)
    return call("Functional.instance_norm", x, mean, var, output=output, **options)


def embedding(dtype: str = "float32", max_norm: float | None = 0.5) -> TaskPayload:
    """A call of F.embedding as nn.Embedding makes it; the rows that it looks up are renormalised."""
    words, weight = whole(6, high=8), tensor(9, 4, dtype=dtype)
    return call("Functional.embedding", words, weight, None, max_norm, 2.0, False, False)


def low_level(name: str) -> TaskPayload:
    mean, var = tensor(5), tensor(5, low=0.5, high=2.0)
    return call(
        f"Torch.{name}", tensor(8, 5, 6, 6), tensor(5), tensor(5), mean, var, True, 0.1, 1e-5
    )


def checked(
    payload: TaskPayload,
    standard: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Kernel], Kernel] | None = None,
    framework: str = "pytorch",
) -> TaskResult:
    checker = statistics_checker(framework, standard=STANDARDS[standard]())
    if fault is not None:
        replace_kernel(monkeypatch, checker.device(), fault)
    return checker.check(payload)


def changed(result: TaskResult) -> dict[str, str]:
    """Return the verdicts of what the call changed, by name."""
    rows = ((check.name.partition(".forward.changed."), check.verdict) for check in result.checks)
    return {name: verdict.value for (_, found, name), verdict in rows if found}


def after(place: int, edit: Callable[[Any, Any], Any]) -> Callable[[Kernel], Kernel]:
    """Return a change of a kernel after which one of its arguments is `edit(before, after)`."""

    def change(function: Kernel) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            before = args[place].clone() if torch.is_tensor(args[place]) else args[place] * 1
            result = function(*args, **kwargs)
            with torch.no_grad():
                args[place][...] = edit(before, args[place])
            return result

        return kernel

    return change


def biased(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return the variance after a step with n in the place of n - 1."""
    n = 8 * 6 * 6
    return 0.9 * before + (after - 0.9 * before) * ((n - 1) / n)


MEAN, VAR = "running_mean", "running_var"
FAULTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "mean x3": (MEAN, lambda _, after: after * 3),
    "var x5": (VAR, lambda _, after: after * 5),
    "mean stays": (MEAN, lambda before, _: before),
    "momentum of the mean": (MEAN, lambda before, after: before + 2 * (after - before)),
    "momentum of the variance": (VAR, lambda before, after: before + 2 * (after - before)),
    "one channel": (VAR, lambda before, after: torch.cat([after[:4], before[4:]])),
    "biased variance": (VAR, biased),
}
NORMS = {
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
}


@STANDARD
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
@pytest.mark.parametrize("norm", NORMS)
def test_wrong_running_statistics_are_found(
    norm: str, dtype: str, fault: str, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, edit = FAULTS[fault]
    if norm == "instance_norm" and fault == "biased variance":
        pytest.skip("of the plane of a channel the bias is another one")
    result = checked(NORMS[norm](dtype), standard, monkeypatch, after(1 + (name == VAR), edit))
    assert changed(result)[name] == "error", result.message
    assert result.forward is Verdict.ERROR
    assert f"forward.changed.{name}: " in result.message


HONEST = {
    "batch_norm": batch_norm(),
    "without weights": call(
        "Functional.batch_norm", leaf(8, 5), tensor(5), tensor(5, low=0.1), training=True
    ),
    "cumulative average": batch_norm(momentum=0.25),
    "one sample for each channel and batch": call(
        "Functional.batch_norm",
        leaf(2, 5),
        tensor(5),
        tensor(5, low=0.1),
        training=True,
        momentum=1.0,
    ),
    "a large offset": call(
        "Functional.batch_norm",
        leaf(64, 5, 9, low=990.0, high=1000.0),
        tensor(5),
        tensor(5, low=0.1),
        training=True,
    ),
    "instance_norm": instance_norm(),
    "native_batch_norm": low_level("native_batch_norm"),
    "embedding": embedding(),
}
HONEST_HALVES = {
    f"{name} {dtype}": payload
    for dtype in HALVES
    for name, payload in {
        "batch_norm": batch_norm(dtype),
        "batch_norm, all": batch_norm(dtype, dtype),
        "instance_norm": instance_norm(dtype),
        "embedding": embedding(dtype),
    }.items()
}


@pytest.mark.parametrize("name", [*HONEST, *HONEST_HALVES])
def test_honest_changes_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {**HONEST, **HONEST_HALVES}[name]
    for standard in ("auto", "msprobe") if name in HONEST else ("auto",):
        result = checked(payload, standard, monkeypatch)
        found = changed(result)
        assert found
        assert set(found.values()) == {"pass"}, result.message
        assert result.forward is Verdict.PASS, result.message


@STANDARD
@pytest.mark.parametrize(
    "payload",
    [
        batch_norm(training=False),
        call("Functional.batch_norm", leaf(8, 5), None, None, training=True),
        instance_norm(use_input_stats=False),
        embedding(max_norm=None),
        batch_norm(momentum=0.0),
    ],
    ids=["evaluated", "no statistics", "no statistics of the input", "no norm", "no momentum"],
)
def test_what_stays_has_no_row(
    payload: TaskPayload, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = checked(payload, standard, monkeypatch)
    assert (changed(result), result.forward) == ({}, Verdict.PASS)


@STANDARD
def test_a_kernel_that_changes_what_has_to_stay_is_found(
    standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = after(2, lambda _, after: after * 0.9)
    result = checked(batch_norm(training=False), standard, monkeypatch, touched)
    assert (changed(result), result.forward) == ({VAR: "error"}, Verdict.ERROR)


@STANDARD
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_weights_that_a_lookup_does_not_renormalise_are_found(
    dtype: str, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = after(1, lambda before, _: before)
    result = checked(embedding(dtype), standard, monkeypatch, stays)
    assert changed(result) == {"weight": "error"}


def written_to_out(place: int, edit: Callable[[Any], Any]) -> Callable[[Kernel], Kernel]:
    """Return a change of a kernel after which one of the tensors of `out` is edited."""

    def change(function: Kernel) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            out = kwargs["out"] if isinstance(kwargs["out"], list | tuple) else [kwargs["out"]]
            out[place].copy_(edit(out[place]))
            return result

        return kernel

    return change


def in_list(position: int, place: int) -> Callable[[Kernel], Kernel]:
    """Return a change of a kernel after which a tensor in a list is a tenth too large."""

    def change(function: Kernel) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            args[position][place].mul_(1.1)
            return result

        return kernel

    return change


def fused(name: str, dtype: str) -> TaskPayload:
    """A step of a fused optimizer, which changes its lists of states."""

    def states(low: float, high: float) -> list[Any]:
        return [
            tensor(40, 3, dtype=dtype, low=low, high=high),
            tensor(7, dtype=dtype, low=low, high=high),
        ]

    shared = {"lr": 0.01, "weight_decay": 0.1, "maximize": False}
    steps = [tensor(low=3.0, high=9.0)] * 2
    given, squares = (states(-1.0, 1.0), states(-0.1, 0.1)), states(1e-4, 1e-2)
    if "sgd" in name:
        options = {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": False}
        return call(f"Torch.{name}", *given, states(-0.1, 0.1), **shared, **options)
    if "adagrad" in name:
        return call(f"Torch.{name}", *given, squares, steps, lr_decay=0.0, eps=1e-8, **shared)
    betas = {"amsgrad": False, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
    return call(f"Torch.{name}", *given, states(-0.1, 0.1), squares, [], steps, **betas, **shared)


def tenth(_: Any, after: Any) -> Any:
    return after * 1.1


def others(dtype: str) -> dict[str, tuple[TaskPayload, Callable[[Kernel], Kernel], str]]:
    """Return calls with what goes wrong in them, and the row that has to say so."""

    def of(*shape: int) -> Any:
        return tensor(*shape, dtype=dtype)

    def named(name: str, *args: Any, **kwargs: Any) -> TaskPayload:
        return call(name, *args, **kwargs)

    best, order = [of(3), whole(3)], [of(3, 4), whole(3, 4)]
    pair = [of(3), of(4)]
    first = "output.0"
    found = {
        "add": (
            named("Torch.add", of(3, 4), of(3, 4), out=of(3, 4)),
            written_to_out(0, lambda t: t * 1.1),
            first,
        ),
        "max": (
            named("Torch.max", of(3, 4), 1, out=best),
            written_to_out(1, lambda t: (t + 1) % 4),
            "output.1",
        ),
        "sort": (
            named("Torch.sort", of(3, 4), out=order),
            written_to_out(1, lambda t: t.flip(-1)),
            "output.1",
        ),
        "_foreach_add_": (named("Torch._foreach_add_", pair, pair), in_list(0, 1), "output.1"),
        "_foreach_lerp_": (
            named("Torch._foreach_lerp_", pair, pair, 0.3),
            in_list(0, 1),
            "output.1",
        ),
        "index_put_": (
            named("Tensor.index_put_", of(3, 4), [whole(2, high=2)], of(2, 4)),
            after(0, tenth),
            first,
        ),
        "scatter_": (
            named("Tensor.scatter_", of(3, 4), 1, whole(3, 2), of(3, 2)),
            after(0, tenth),
            first,
        ),
        "index_add_": (
            named("Tensor.index_add_", of(3, 4), 0, whole(2, high=2), of(2, 4)),
            after(0, tenth),
            first,
        ),
        "_fused_adam_": (fused("_fused_adam_", dtype), in_list(3, 1), "changed.exp_avg_sqs_1"),
        "_fused_adamw_": (fused("_fused_adamw_", dtype), in_list(2, 0), "changed.exp_avgs_0"),
        "_fused_adagrad_": (fused("_fused_adagrad_", dtype), in_list(2, 1), "changed.state_sums_1"),
    }
    if dtype != "float32":
        return found
    scale, tracker = tensor(low=1.0, high=2.0), tensor(dtype="int32", low=0, high=3)
    none, one = tensor(low=0.0, high=0.0), tensor(1, low=0.0, high=0.0)
    unscaled = [tensor(4), tensor(3)], one, tensor(low=0.5, high=0.5)
    return found | {
        "embedding_bag": (
            named("Functional.embedding_bag", whole(6, high=8), of(9, 4), whole(2), 0.3),
            after(1, lambda before, _: before),
            "changed.weight",
        ),
        # torch 2.13's kernel on the CPU is wrong in half types itself, from 16 elements on.
        "_fused_sgd_": (
            fused("_fused_sgd_", dtype),
            in_list(2, 1),
            "changed.momentum_buffer_list_1",
        ),
        "frexp": (
            named("Torch.frexp", tensor(8), out=[tensor(8), tensor(8, dtype="int32")]),
            written_to_out(1, lambda t: t + 1),
            "output.1",
        ),
        "_amp_update_scale_": (
            named("Torch._amp_update_scale_", scale, tracker, none, 2.0, 0.5, 2000),
            after(1, lambda before, _: before + 2),
            "changed.growth_tracker",
        ),
        "_amp_foreach_non_finite_check_and_unscale_": (
            named("Torch._amp_foreach_non_finite_check_and_unscale_", *unscaled),
            after(1, lambda before, _: before + 1),
            "changed.found_inf",
        ),
    }


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for d in ("float32", *HALVES) for n in others(d)]
)
def test_out_lists_and_states_that_are_wrong_are_found(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, fault, row = others(dtype)[name]
    for standard in ("auto", "msprobe"):
        if standard == "auto" or dtype == "float32":
            assert checked(payload, standard, monkeypatch).forward is Verdict.PASS
        result = checked(payload, standard, monkeypatch, fault)
        assert f"forward.{row}: " in result.message, result.message


@NEEDS_MINDSPORE
@STANDARD
@pytest.mark.parametrize("fault", ["mean x3", "var x5", "mean stays"])
def test_wrong_statistics_of_mindspore_are_found(
    fault: str, standard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, edit = FAULTS[fault]
    x, vector = ms_tensor(8, 5, 6, 6, low=-3.0, high=5.0), ms_tensor(5, low=0.5, high=2.0)
    payload = call("Functional.batch_norm", x, vector, vector, vector, vector, True, 0.1)
    honest = checked(payload, standard, monkeypatch, framework="mindspore")
    assert changed(honest) == {MEAN: "pass", VAR: "pass"}, honest.message
    place = 1 + (name == VAR)
    result = checked(payload, standard, monkeypatch, after(place, edit), "mindspore")
    assert changed(result)[name] == "error", result.message


def test_they_go_from_the_process_of_a_device_to_that_of_a_bench() -> None:
    payload, settings = batch_norm(), CheckSettings("pytorch", "statistics", Path())
    measured = Checker(settings, "cpu").measure(payload)
    assert isinstance(measured, Measured)
    mean, var = measured.changed
    wrong = replace(measured, changed=(mean, replace(var, data=var.data * 5)))
    for each, verdict in ((measured, "pass"), (wrong, "error")):
        arrived = pickle.loads(pickle.dumps(each))
        result = Checker(settings, BENCH).check(payload, measured=arrived)
        assert changed(result) == {MEAN: "pass", VAR: verdict}
    assert measured.nbytes > replace(measured, changed=()).nbytes


def test_a_backend_that_does_not_tell_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = statistics_checker("pytorch")
    forward = checker.device().forward

    def silent(*call: Any) -> Any:
        run = forward(*call)
        return SimpleNamespace(outputs=run.outputs, gradients=run.gradients)

    monkeypatch.setattr(checker.device(), "forward", silent)
    result = checker.check(batch_norm())
    assert (changed(result), result.forward) == ({}, Verdict.PASS)
    assert "the backend does not give running_mean, running_var after the call" in result.message


def test_the_table_says_what_torchs_schemas_say() -> None:
    compared = 0
    for name, row in CHANGES.by_name.items():
        operator = getattr(torch.ops.aten, name.removeprefix("torch."), None)
        if operator is None:  # of torch.nn.functional, or of MindSpore
            continue
        words = row.split()
        schema = operator.default._schema.arguments
        written = {a.name for a in schema if a.alias_info is not None and a.alias_info.is_write}
        marked = {word[:-1] for word in words if word.endswith("!")}
        if written:
            assert written - {schema[0].name} == marked, name
            compared += 1
        assert [word.rstrip("!") for word in words] == [a.name for a in schema][: len(words)], name
    assert compared >= 8
