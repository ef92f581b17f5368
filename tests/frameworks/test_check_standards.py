"""The standards on real calls: what they get, what they pass, what they find."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import (
    NEEDS_MINDSPORE,
    altered,
    call,
    capture_settings,
    failing,
    payloads_of,
    replace_kernel,
    rows,
    statistics_checker,
    tensor,
    whole,
)
from torch.nn import functional

from ray_precheck.accuracy.standards.base import (
    ERROR_HEADINGS,
    Comparison,
    Judgement,
    added_headings,
    kernel_of,
)
from ray_precheck.accuracy.standards.published import Benchmark
from ray_precheck.accuracy.standards.user_file import STANDARDS, parse_standard
from ray_precheck.check import judge
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.precheck.run import rerun
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload
from ray_precheck.store.tables import ERROR_FOLDER

pytestmark = pytest.mark.frameworks

LINEAR = call(
    "Functional.linear",
    tensor(16, 64, grad=True),
    tensor(32, 64, grad=True),
    grads=[tensor(16, 32)],
)
HALF_LINEAR = call(
    "Functional.linear",
    tensor(16, 64, grad=True, dtype="bfloat16"),
    tensor(32, 64, grad=True, dtype="bfloat16"),
    grads=[tensor(16, 32, dtype="bfloat16")],
)


class Recorder:
    """A standard that keeps what it is given and judges nothing."""

    name, columns = "recorder", ("Own",)

    def __init__(self) -> None:
        self.seen: list[Comparison] = []
        self.implementations: list[list[Any]] = []

    def judge(self, comparison: Comparison) -> Judgement:
        self.seen.append(comparison)
        self.implementations.append(list(comparison.implementations()))
        return Judgement(Verdict.PASS, "", (("Own", 1.0),))


def test_a_standard_gets_the_call_the_arrays_and_the_implementations_of_both_directions() -> None:
    standard = Recorder()
    result = statistics_checker("pytorch", standard=standard).check(HALF_LINEAR)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
    assert [(seen.type_name, seen.direction) for seen in standard.seen] == [
        ("Functional.linear", "forward"),
        *[("Functional.linear", "backward")] * 2,
    ]
    for seen, implementations in zip(standard.seen, standard.implementations, strict=True):
        assert (seen.dtype, str(seen.bench_out.dtype)) == ("bfloat16", "float64")
        assert implementations[0].shape == seen.device_out.shape
        assert (implementations[0] != seen.bench_out).any()
        # On the CPU torch's own kernel is what is tested, and no measure of itself.
        assert kernel_of(seen.implementations()) is None


def test_the_cpus_kernel_stands_beside_the_implementations_of_other_devices_and_frameworks() -> (
    None
):
    settings = CheckSettings("pytorch", "statistics", Path(), device_type="npu")
    assert not settings.tests_own_kernel(BENCH)
    assert not settings.tests_own_kernel("gpu")
    assert settings.tests_own_kernel("cpu")
    assert replace(settings, device_type="cpu").tests_own_kernel(BENCH)
    assert not replace(settings, framework="mindspore").tests_own_kernel("cpu")
    assert not replace(settings, tests_dump=True).tests_own_kernel("cpu")
    standard = Recorder()
    checker = statistics_checker("pytorch", standard=standard)
    checker.terms = replace(checker.terms, tests_own_kernel=False)
    checker.check(HALF_LINEAR)
    assert standard.seen
    for seen in standard.seen:
        assert np.array_equal(kernel_of(seen.implementations()), seen.device_out)


def test_the_rows_have_the_errors_and_the_cells_of_the_standard() -> None:
    result = statistics_checker("pytorch", standard=Recorder()).check(HALF_LINEAR)
    assert result.checks
    for check in result.checks:
        assert tuple(dict(check.columns)) == ("Standard", *ERROR_HEADINGS, "Own")


def test_no_implementation_is_run_where_the_standard_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: Any) -> Any:
        raise AssertionError("an implementation was run")

    monkeypatch.setattr(judge.Implementations, "leaves", run)
    for name in ("msprobe", "absolute", "binary", "ulp", "thousandth"):
        result = statistics_checker("pytorch", standard=STANDARDS[name]()).check(LINEAR)
        assert "an implementation was run" not in result.message
    result = statistics_checker("pytorch", standard=Benchmark()).check(LINEAR)
    assert "an implementation was run" in result.message


def judged(capture: str, standard: str) -> list[TaskResult]:
    checker = Checker(capture_settings(capture, standard=STANDARDS[standard]()), "cpu")
    return [checker.check(payload) for payload in payloads_of(capture)]


@pytest.mark.parametrize("capture", ["torch_llm", "torch_llm_bf16", "torch_cnn"])
def test_benchmark_measures_torch_on_the_cpu_against_a_composed_implementation(
    capture: str,
) -> None:
    results = judged(capture, "benchmark")
    assert [check.name for check in failing(results)] == []
    references = {dict(check.columns).get("Reference") for r in results for check in r.checks}
    assert references <= {"a composed implementation", "the rounded bench", None}
    assert "a composed implementation" in references


@NEEDS_MINDSPORE
def test_auto_accuses_of_mindspores_capture_the_gradient_that_is_wrong_alone() -> None:
    """MindSpore rounds the divisor 2.83 to float16, by which all quotients are off in one direction."""
    names = {check.name for check in failing(judged("mindspore_llm_fp16", "auto"))}
    assert names == {"Mint.split.0.backward.output.0"}


def test_the_default_calls_correct_bfloat16_outputs_an_error() -> None:
    assert list(failing(judged("torch_llm_bf16", "msprobe"))) != []


@NEEDS_MINDSPORE
@pytest.mark.parametrize("name", STANDARDS)
@pytest.mark.parametrize("capture", ["mindspore_llm_fp16", "mindspore_llm_tensor"])
def test_every_row_has_only_cells_with_a_heading(name: str, capture: str) -> None:
    headings = set(added_headings(STANDARDS[name]()))
    results = judged(capture, name)
    assert sum(len(result.checks) for result in results) >= 30
    for result in results:
        assert "ray_precheck failed" not in result.message
        for check in result.checks:
            assert {heading for heading, _ in check.columns} <= headings


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "factor": (lambda out: out * 1.1, "a constant factor: the device is 1.1 times"),
    "rows": (lambda out: torch.roll(out, 1, 0), "rows shifted by one: along axis 0"),
    "zeros": (
        lambda out: torch.cat([out[:-2], torch.zeros_like(out[-2:])]),
        "64 elements are zero, one block of 64 from index [14, 0] on",
    ),
    "sign": (lambda out: -out, "the sign of every element is flipped"),
}


@pytest.mark.parametrize("name", [*STANDARDS])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found_with_its_cause(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit, cause = FAULTS[fault]
    checker = statistics_checker("pytorch", standard=STANDARDS[name]())
    replace_kernel(monkeypatch, checker.device(), altered(edit))
    result = checker.check(replace(LINEAR, backward=None))
    assert result.forward is Verdict.ERROR
    assert f"likely cause: {cause}" in result.message


@pytest.mark.parametrize("name", ["benchmark", "absolute", "ulp", "thousandth", "auto"])
def test_a_wrong_gradient_of_tiny_size_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the default rule passes: all its errors are below 0.0001."""
    tiny = [tensor(16, 32, low=-1e-3, high=1e-3)]
    payload = call("Functional.linear", *_tensors(), grads=tiny)

    def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda left, right: function(left, right * 1.0 + 0.001 * right)

    for standard, verdict in (("msprobe", Verdict.PASS), (name, Verdict.ERROR)):
        checker = statistics_checker("pytorch", standard=STANDARDS[standard]())
        with monkeypatch.context() as patched:
            replace_kernel(patched, checker.device(), scaled)
            result = checker.check(payload)
        assert result.backward is verdict, result.message


def _tensors() -> list[Any]:
    return [tensor(16, 64, grad=True, low=-0.01, high=0.01), tensor(32, 64, low=-0.1, high=0.1)]


def test_a_users_file_judges_by_api_and_dtype() -> None:
    text = b"""
    standard: binary
    rules:
      - {api: linear, dtype: bfloat16, standard: benchmark}
    """
    checker = statistics_checker("pytorch", standard=parse_standard(text, "my.yaml"))
    half, whole = checker.check(HALF_LINEAR), checker.check(LINEAR)
    assert {dict(check.columns)["Standard"] for check in half.checks} == {"benchmark L0"}
    assert {dict(check.columns)["Standard"] for check in whole.checks} == {"binary"}
    assert half.forward is Verdict.PASS
    assert whole.forward is Verdict.ERROR  # float32 sums are not those of float64, rounded


def test_a_saved_call_is_judged_again_by_the_standard_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / ERROR_FOLDER
    checker = statistics_checker("pytorch", standard=STANDARDS["binary"](), error_folder=folder)
    assert checker.check(LINEAR).forward is Verdict.ERROR
    (saved,) = folder.glob("*.json")
    assert rerun(saved).forward is Verdict.PASS
    assert rerun(saved, standard="binary").forward is Verdict.ERROR


def test_a_value_that_is_no_tensor_has_no_cells() -> None:
    checker = statistics_checker("pytorch", standard=Benchmark())
    (row,) = rows(checker.check(call("Tensor.dim", tensor(3, 4))), "forward")
    assert (row.verdict, row.columns) == (Verdict.PASS, ())


def wide(*shape: int, dtype: str = "float64", **options: Any) -> Any:
    return tensor(*shape, dtype=dtype, **options)


def next_up(function: Callable[..., Any]) -> Callable[..., Any]:
    """Round to the number above."""
    return altered(lambda out: torch.nextafter(out, torch.tensor(torch.inf, dtype=out.dtype)))(
        function
    )


def flipped(*dims: int | None) -> Callable[[Any], Any]:
    """Take the terms of a sum in the opposite order: the dimension of each argument."""

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        def other(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            for at, dim in enumerate(dims):
                given[at] = args[at] if dim is None else args[at].flip(dim)
            return function(*given, **kwargs)

        return other

    return change


# Calls of float64, each with another honest way to compute it.
REORDERED: dict[str, tuple[TaskPayload, Callable[[Any], Any]]] = {
    "sum": (call("Tensor.sum", wide(1000)), flipped(0)),
    "complex sum": (call("Tensor.sum", wide(1000, dtype="complex128")), flipped(0)),
    "tiny": (call("Torch.sum", wide(1000, low=-1e-200, high=1e-200)), flipped(0)),
    "huge": (call("Torch.sum", wide(1000, low=-1e200, high=1e200)), flipped(0)),
    "mean": (call("Torch.mean", wide(20, 700), 1), flipped(1)),
    "var": (call("Torch.var", wide(20, 700), 1), flipped(1)),
    "norm": (call("Torch.linalg.vector_norm", wide(4000)), flipped(0)),
    "matmul": (call("Torch.matmul", wide(40, 600), wide(600, 30)), flipped(1, 0)),
    "linear": (call("Functional.linear", wide(40, 600), wide(30, 600)), flipped(1, 1)),
    "conv2d": (call("Functional.conv2d", wide(2, 16, 9, 9), wide(8, 16, 3, 3)), flipped(1, 1)),
    "softmax": (
        call("Functional.softmax", wide(30, 200), -1),
        lambda _: lambda x, dim: x.exp() / x.exp().flip(dim).sum(dim, keepdim=True),
    ),
    "logsumexp": (call("Torch.logsumexp", wide(30, 200), 1), flipped(1)),
    "cumsum": (
        call("Torch.cumsum", wide(30, 500), 1),
        lambda _: (
            lambda x, _: torch.from_numpy(
                np.cumsum(x.numpy().astype(np.longdouble), 1).astype(float)
            )
        ),
    ),
    "prod": (call("Torch.prod", wide(100, low=0.5, high=1.5)), flipped(0)),
    "exp": (call("Torch.exp", wide(300)), next_up),
    "erf": (call("Torch.erf", wide(300)), next_up),
    "fft": (
        call("Torch.fft.fft", wide(8, 300, dtype="complex128")),
        lambda function: (
            lambda x: (
                function(x.flip(-1)).roll(-1, -1).flip(-1)
                * torch.exp(2j * torch.pi * torch.arange(300, dtype=torch.float64) / 300)
            )
        ),
    ),
    "inv": (
        call("Torch.linalg.inv", wide(30, 30)),
        lambda function: lambda x: function(x.flip(0)).flip(1),
    ),
    "eigvalsh": (
        call("Torch.linalg.eigvalsh", wide(20, 20)),
        lambda function: lambda x: function(x.tril().flip(0).flip(1).T.contiguous()),
    ),
}


def one_off(share: float) -> Callable[[Any], Any]:
    def edit(out: torch.Tensor) -> torch.Tensor:
        flat = out.clone().reshape(-1)
        flat[flat.abs().argmax()] *= 1.0 + share
        return flat.reshape(out.shape)

    return altered(edit)


def in_single(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute in float32 what is to be computed in float64."""
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}

    def computed(*args: Any) -> Any:
        low = [x.to(narrow[x.dtype]) if torch.is_tensor(x) else x for x in args]
        found = function(*low)
        return found.to(next(wide for wide, dtype in narrow.items() if dtype is found.dtype))

    return computed


@pytest.mark.parametrize("name", REORDERED)
def test_float64_may_be_computed_in_another_order_and_has_no_more_room(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, other = REORDERED[name]
    results = []
    for change in (other, one_off(1e-12), in_single):
        checker = statistics_checker("pytorch", standard=STANDARDS["auto"]())
        with monkeypatch.context() as patch:
            replace_kernel(patch, checker.device(), change)
            results.append(checker.check(payload))
    assert results[0].forward is Verdict.PASS, results[0].message
    assert {each.forward for each in results[1:]} == {Verdict.ERROR}


def halves(*shape: int, low: float = -5.0, high: float = 5.0) -> Any:
    return wide(*shape, dtype="float16", low=low, high=high)


def gpu_cross_entropy(x: Any, target: Any, label_smoothing: float = 0.0, **_: Any) -> Any:
    narrow = torch.log_softmax(x, -1).float()
    loss = functional.nll_loss(narrow, target) * (1.0 - label_smoothing)
    return loss - narrow.sum(-1).mean() * label_smoothing / x.shape[-1]


# What CUDA's autocast makes of functions that are not in its list: half steps, a float32 result.
NARROW: dict[str, tuple[TaskPayload, Callable[..., Any]]] = {
    "cross_entropy": (
        call("Functional.cross_entropy", halves(64, 10), whole(64, high=9)),
        gpu_cross_entropy,
    ),
    "smoothed": (
        call("Functional.cross_entropy", halves(64, 10), whole(64, high=9), label_smoothing=0.1),
        gpu_cross_entropy,
    ),
    "gaussian_nll_loss": (
        call("Functional.gaussian_nll_loss", halves(64), halves(64), halves(64, low=0.5)),
        lambda x, y, var: ((var.float().log() + (x - y).float() ** 2 / var) / 2).mean(),
    ),
    "pairwise_distance": (
        call("Functional.pairwise_distance", halves(64, 20), halves(64, 20)),
        lambda x, y: torch.linalg.vector_norm((x - y + 1e-6).float(), dim=-1),
    ),
    "multilabel_soft_margin_loss": (
        call("Functional.multilabel_soft_margin_loss", halves(9, 20), halves(9, 20, low=0, high=1)),
        lambda x, y: (
            -(y * functional.logsigmoid(x) + (1 - y) * functional.logsigmoid(-x))
            .float()
            .sum(-1)
            .div(20)
            .mean()
        ),
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_half_steps_under_an_accelerators_autocast_are_honest_there_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, kernel = NARROW[name]
    record = {**json.loads(payload.forward or b""), "autocast": "torch.float16"}
    record["output"] = [tensor(64) if name == "pairwise_distance" else tensor()]

    def verdict(device: str, factor: float = 1.0) -> Verdict:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return kernel(*args, **kwargs) * factor

        checker = statistics_checker("pytorch", standard=STANDARDS["auto"]())
        checker.terms = replace(checker.terms, device=device)
        with monkeypatch.context() as patch:
            replace_kernel(patch, checker.device(), lambda _: run)
            return checker.check(replace(payload, forward=json.dumps(record).encode())).forward

    assert (verdict("cuda"), verdict("cpu")) == (Verdict.PASS, Verdict.ERROR)
    assert verdict("cuda", 1.01) is Verdict.ERROR


def test_a_captured_result_is_judged_by_the_autocast_of_its_device(tmp_path: Path) -> None:
    torch.manual_seed(1)
    values = [torch.randn(64, 10).half() * 3, torch.randint(0, 9, (64,))]
    values.append(gpu_cross_entropy(*values))
    elements = [halves(64, 10), whole(64, high=9), tensor()]
    for at, (value, found) in enumerate(zip(values, elements, strict=True)):
        torch.save(value, tmp_path / f"{at}.pt")
        found["data_name"] = f"{at}.pt"
    payload = call("Functional.cross_entropy", *elements[:2], output=elements[2])
    settings = CheckSettings("pytorch", "tensor", tmp_path, tests_dump=True)
    checker = Checker(replace(settings, standard=STANDARDS["auto"]()), "cpu")
    for device, verdict in (("cuda", Verdict.PASS), ("", Verdict.ERROR)):
        record = json.loads(payload.forward or b"")
        record |= {"autocast": "torch.float16", "autocast_device": device}
        result = checker.check(replace(payload, forward=json.dumps(record).encode()))
        assert result.forward is verdict, result.message
