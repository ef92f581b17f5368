"""Benches of users' own, through the checker: what they are given, and what is tested."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from records import call, ms_tensor, rows, tensor, timeless

from ray_precheck.bench.declared import BenchModule
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import UsageError
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH

pytestmark = pytest.mark.frameworks

HEAD = "import ray_precheck\nimport torch\n"
SCALED_EXP = """
def kernel(x, scale=1.0):
    assert x.dtype is torch.float32
    return torch.exp(x) * scale

@ray_precheck.reference("MyOps.scaled_exp", tested=kernel)
def scaled_exp(x, scale=1.0):
    assert x.dtype is torch.float64
    return x.exp() * scale
"""
CALL = call("MyOps.scaled_exp", tensor(4, 8, grad=True), scale=0.5, grads=[tensor(4, 8)])


def settings(text: str, framework: str = "pytorch") -> CheckSettings:
    module = BenchModule("bench.py", HEAD + text)
    return CheckSettings(framework, "statistics", Path(), bench_modules=(module,))


def check(text: str, payload: Any = CALL, framework: str = "pytorch") -> TaskResult:
    return Checker(settings(text, framework), "cpu").check(payload)


def wrong(text: str, right: str, other: str) -> str:
    assert right in text
    return text.replace(right, other)


def test_an_operator_of_ones_own_is_tested_forward_and_backward() -> None:
    result = check(SCALED_EXP)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(result.checks) == 2


def test_an_operator_of_ones_own_that_is_wrong_is_found() -> None:
    result = check(wrong(SCALED_EXP, "torch.exp(x) *", "torch.expm1(x) *"))
    assert (result.forward, result.backward) == (Verdict.ERROR, Verdict.PASS)
    detached = "torch.exp(x) + 0.1 * x.detach() - 0.1 * x"
    result = check(wrong(SCALED_EXP, "torch.exp(x)", f"({detached})"))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)


def test_device_and_bench_may_be_in_two_processes() -> None:
    shipped = pickle.loads(pickle.dumps(settings(SCALED_EXP)))
    measured = Checker(shipped, "cpu").measure(CALL)
    assert isinstance(measured, Measured)
    result = Checker(shipped, BENCH).check(CALL, measured=measured)
    assert timeless(result) == timeless(check(SCALED_EXP))


def test_a_bench_of_ones_own_takes_the_place_of_a_built_in_one() -> None:
    text = '@ray_precheck.reference("Torch.cos")\ndef wrong(x):\n    return x.sin()\n'
    result = check(text, call("Torch.cos", tensor(4, 8)))
    assert result.forward is Verdict.ERROR
    assert check(text, call("Torch.sin", tensor(4, 8))).forward is Verdict.PASS


def test_npu_operators_of_ones_own_are_tested_on_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '@ray_precheck.reference("NPU.npu_mine")\ndef mine(x, power):\n    return x**power\n'
    payload = call("NPU.npu_mine", tensor(4, 8), power=2)
    assert "torch_npu, which cannot be imported here" in check(text, payload).message
    module = ModuleType("torch_npu")
    module.npu_mine = lambda x, power: torch.pow(x, power)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    assert check(text, payload).forward is Verdict.PASS


def test_what_is_tested_may_be_a_dotted_path() -> None:
    text = (
        '@ray_precheck.reference("MyOps.expm1", tested="torch.special.expm1")\n'
        "def mine(x):\n    return x.exp() - 1\n"
    )
    payload = call("MyOps.expm1", tensor(4, 8))
    assert check(text, payload).forward is Verdict.PASS
    for path, says in [("torch.special.nothing", "AttributeError"), ("no.thing", "ModuleNotFound")]:
        result = check(wrong(text, "torch.special.expm1", path), payload)
        assert result.forward is Verdict.SKIP
        assert f"bench.py: mine: tested='{path}' cannot be imported here: {says}" in result.message
    result = check(wrong(text, "torch.special.expm1", "torch.special.torch"), payload)
    assert "is no function" in result.message


def test_an_operator_that_is_nowhere_says_how_to_name_it() -> None:
    text = '@ray_precheck.reference("MyOps.f")\ndef f(x):\n    return x\n'
    result = check(text, call("MyOps.f", tensor(4)))
    assert result.forward is Verdict.SKIP
    assert result.message.endswith("bench.py: f: @reference(..., tested=...) says where else it is")


def test_a_function_that_raises_is_one_sentence_with_file_and_function() -> None:
    for body, says in [
        ('raise ValueError("too\\n  long")', "ValueError: too long"),
        ("return x.nothing", "AttributeError: 'Tensor' object has no attribute 'nothing'"),
        ("return scaled_exp2", "NameError: name 'scaled_exp2' is not defined"),
    ]:
        result = check(wrong(SCALED_EXP, "return x.exp() * scale", body))
        assert result.forward is Verdict.SKIP
        assert f"bench.py: scaled_exp raised {says}" in result.message


def test_a_function_that_returns_another_number_of_outputs_is_one_sentence() -> None:
    result = check(wrong(SCALED_EXP, "return x.exp() * scale", "return x, x"))
    assert result.forward is Verdict.SKIP
    assert result.message.startswith(
        "bench.py: scaled_exp returned 2 outputs where the device returned 1"
    )


def test_a_function_may_say_that_a_call_cannot_be_checked() -> None:
    body = 'raise ray_precheck.errors.NotCheckable("odd scales are not ours")'
    result = check(wrong(SCALED_EXP, "return x.exp() * scale", body))
    assert (result.forward, result.message) == (Verdict.SKIP, "odd scales are not ours")


def test_an_in_place_operator_of_ones_own_is_compared_by_what_it_changed() -> None:
    text = (
        "def kernel(x):\n    x.exp_()\n"
        '@ray_precheck.reference("MyOps.mine_", tested=kernel)\ndef mine(x):\n    return x.exp_()\n'
    )
    payload = call("MyOps.mine_", tensor(4, 8, grad=True), grads=[tensor(4, 8)])
    result = check(text, payload)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")


def test_mindspores_operators_may_have_benches_of_ones_own(mindspore_checker: Checker) -> None:
    text = """
def kernel(x, y):
    from mindspore import mint
    return mint.mul(x, mint.cos(y))

@ray_precheck.reference("MyOps.mix", tested=kernel)
def mix(x, y):
    return x * y.cos()
"""
    payload = call("MyOps.mix", ms_tensor(4, 8), ms_tensor(4, 8), grads=[ms_tensor(4, 8)])
    result = check(text, payload, "mindspore")
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, Verdict.PASS, "")
    assert len(rows(result, "backward")) == 2


def test_a_module_that_cannot_be_run_here_ends_the_start_with_its_sentence() -> None:
    with pytest.raises(UsageError, match=r"bench.py cannot be run: line 3: ModuleNotFoundError"):
        Checker(settings("import no_such_package\n"), "cpu")
    with pytest.raises(UsageError, match="declares no bench"):
        Checker(replace(settings("x = 1\n")), BENCH)
