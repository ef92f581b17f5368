"""Calls whose output is random, from record to verdict, with real frameworks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import (
    altered,
    call,
    dtypes,
    judged_together,
    leaf,
    raising,
    replace_kernel,
    rows,
    shapes,
    size,
    statistics_checker,
    symbol,
    tensor,
    timeless,
)

from ray_precheck.accuracy.random.pooled import judge_pooled, read_drawn
from ray_precheck.check.attempt import Measured
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.random.rules import RULES, rule_of
from ray_precheck.check.settings import CheckSettings
from ray_precheck.operators.drawing import DRAWING, Always
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import BENCH, TaskPayload

pytestmark = pytest.mark.frameworks

BFLOAT, COMPLEX = symbol("torch.dtype", "torch.bfloat16"), symbol("torch.dtype", "torch.complex64")
WIDE = (64, 200)
PASS, NONE, SKIP, ERROR = Verdict.PASS, Verdict.NONE, Verdict.SKIP, Verdict.ERROR
JUDGED = "its output is random: judged by statistics"


def dropping(api: str, *args: Any, shape: tuple[int, ...] = WIDE, **options: Any) -> TaskPayload:
    """A call with a backward record whose output has the shape of its input."""
    return call(api, leaf(*shape, **options), *args, grads=[tensor(*shape, **options)])


WITH_GRADIENT = {
    "dropout": dropping("Functional.dropout", 0.1, True, False),
    "dropout by position": dropping("Torch.dropout", 0.3, True),
    "dropout in place": dropping("Functional.dropout", 0.3, True, True),
    "dropout bf16": dropping("Functional.dropout", 0.1, True, dtype="bfloat16"),
    "dropout fp16": dropping("Functional.dropout", 0.1, True, dtype="float16"),
    "dropout of everything": dropping("Functional.dropout", 1.0),
    "dropout1d": dropping("Functional.dropout1d", 0.3, shape=(16, 50, 7)),
    "dropout2d": dropping("Functional.dropout2d", 0.3, shape=(16, 50, 3, 3)),
    "dropout3d": dropping("Functional.dropout3d", 0.3, shape=(4, 50, 2, 3, 3)),
    "feature_dropout": dropping("Torch.feature_dropout", 0.3, True, shape=(64, 50, 2)),
    "alpha_dropout": dropping("Functional.alpha_dropout", 0.3, True),
    "alpha_dropout bf16": dropping("Functional.alpha_dropout", 0.3, True, dtype="bfloat16"),
    "feature_alpha_dropout": dropping(
        "Functional.feature_alpha_dropout", 0.3, True, shape=(16, 50, 7)
    ),
    "rrelu": dropping("Functional.rrelu", 0.1, 0.3, True),
    "rrelu bf16": dropping("Functional.rrelu", 0.1, 0.3, True, dtype="bfloat16"),
    "gumbel_softmax": dropping("Functional.gumbel_softmax", shape=(5000, 7)),
    **{
        f"{api} {dtype}": dropping(f"Tensor.{api}", *args, dtype=dtype)
        for dtype in ("float32", "float16", "bfloat16")
        for api, args in {
            "normal_": (3.0, 2.0),
            "uniform_": (-3.0, 5.0),
            "exponential_": (2.0,),
            "cauchy_": (1.0, 3.0),
            "log_normal_": (),
            "geometric_": (0.3,),
            "random_": (),
            "bernoulli_": (0.3,),
        }.items()
    },
}
FORWARD = {
    "rand": (call("Torch.rand", *WIDE), WIDE),
    "rand bf16": (call("Torch.rand", size(*WIDE), dtype=BFLOAT), WIDE),
    "rand_like": (call("Torch.rand_like", tensor(*WIDE, dtype="float16")), WIDE),
    "randn": (call("Torch.randn", *WIDE), WIDE),
    "randn complex": (call("Torch.randn", *WIDE, dtype=COMPLEX), WIDE),
    "randn_like": (call("Torch.randn_like", tensor(*WIDE)), WIDE),
    "randint": (call("Torch.randint", 10, size(*WIDE)), WIDE),
    "randint from": (call("Torch.randint", -3, 10, size(*WIDE)), WIDE),
    "randint by keyword": (call("Torch.randint", low=2, high=9, size=size(*WIDE)), WIDE),
    "randint_like": (call("Torch.randint_like", tensor(*WIDE), 3, 70_000), WIDE),
    "randint_like bf16": (call("Torch.randint_like", tensor(*WIDE, dtype="bfloat16"), 200), WIDE),
    "random_ int64": (call("Tensor.random_", tensor(*WIDE, dtype="int64")), WIDE),
    "random_ to": (call("Tensor.random_", tensor(*WIDE, dtype="int32"), 7), WIDE),
    "random_ from to": (call("Tensor.random_", tensor(*WIDE), 5, to=9), WIDE),
    "random_ bool": (call("Tensor.random_", tensor(*WIDE, dtype="bool")), WIDE),
    "randperm": (call("Torch.randperm", 1000), (1000,)),
    "randperm of three": (call("Torch.randperm", 3), (3,)),
    "normal of numbers": (call("Torch.normal", 2.0, 3.0, size(*WIDE)), WIDE),
    "normal of tensors": (call("Torch.normal", tensor(*WIDE), tensor(*WIDE, low=0.5)), WIDE),
    "normal with out": (call("Torch.normal", 0.0, 1.0, size(*WIDE), out=tensor(*WIDE)), WIDE),
    "bernoulli": (call("Torch.bernoulli", tensor(*WIDE, low=0.0)), WIDE),
    "bernoulli of a number": (call("Tensor.bernoulli", tensor(*WIDE), 0.3), WIDE),
    "poisson": (call("Torch.poisson", tensor(*WIDE, low=0.0, high=50.0)), WIDE),
    "binomial": (
        call("Torch.binomial", tensor(*WIDE, low=20.0, high=20.0), tensor(*WIDE, low=0.0)),
        WIDE,
    ),
    "multinomial": (call("Torch.multinomial", tensor(500, 10, low=0.0), 5), (500, 5)),
    "multinomial again and again": (
        call("Torch.multinomial", tensor(10, low=0.0), 5000, replacement=True),
        (5000,),
    ),
    "gumbel_softmax hard": (
        call("Functional.gumbel_softmax", tensor(5000, 7), tau=0.5, hard=True, dim=0),
        (5000, 7),
    ),
    "attention": (
        call("Functional.scaled_dot_product_attention", *[tensor(2, 4, 64, 16)] * 3, None, 0.1),
        (2, 4, 64, 16),
    ),
    "causal attention": (
        call(
            "Functional.scaled_dot_product_attention",
            *[tensor(2, 4, 64, 16)] * 3,
            dropout_p=0.2,
            is_causal=True,
        ),
        (2, 4, 64, 16),
    ),
}


@pytest.mark.parametrize("case", WITH_GRADIENT)
def test_a_random_output_and_its_gradient_are_judged_by_statistics(
    torch_checker: Checker, case: str
) -> None:
    result = torch_checker.check(WITH_GRADIENT[case])
    assert (result.forward, result.backward, result.message) == (PASS, PASS, JUDGED)
    assert shapes(result) == shapes(result, "backward") != []
    assert all(check.metrics is None for check in result.checks)
    assert all(check.message.startswith("random: ") for check in result.checks)


@pytest.mark.parametrize("case", FORWARD)
def test_a_random_output_is_judged_by_statistics(torch_checker: Checker, case: str) -> None:
    payload, shape = FORWARD[case]
    result = torch_checker.check(payload)
    assert (result.forward, result.backward, result.message) == (PASS, NONE, JUDGED)
    assert shapes(result) == [str(shape)]


@pytest.mark.parametrize("case", [case for case in FORWARD if case != "randperm of three"])
def test_honest_calls_are_not_accused_together(torch_checker: Checker, case: str) -> None:
    verdict, message = judged_together(torch_checker, FORWARD[case][0], 6)
    assert verdict is PASS, message


@pytest.mark.parametrize("case", [case for case in WITH_GRADIENT if "everything" not in case])
def test_honest_dropout_is_not_accused_together(torch_checker: Checker, case: str) -> None:
    verdict, message = judged_together(torch_checker, WITH_GRADIENT[case], 6)
    assert verdict is PASS, message


@pytest.mark.parametrize(
    "payload",
    [dropping("Functional.dropout", shape=(0, 4)), call("Torch.rand", 0, 3)],
)
def test_random_numbers_that_nobody_drew_are_no_pass(
    torch_checker: Checker, payload: TaskPayload
) -> None:
    result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (SKIP, SKIP if payload.backward else NONE)
    assert "no element to compare: the output is empty" in result.message
    assert JUDGED not in result.message


# Honest calls that may well draw the same twice, or whose draws are lost in the rounding of their mean.
HARDLY_RANDOM = {
    "attention to one key": call(
        "Functional.scaled_dot_product_attention", *[tensor(1, 1, 1, 64)] * 3, None, 0.1
    ),
    "attention to few keys": call(
        "Functional.scaled_dot_product_attention",
        *(tensor(1, 1, 8, 16), tensor(1, 1, 8, 16), tensor(1, 1, 8, 512)),
        *(None, 0.05, True),
    ),
    "normal bf16": call("Torch.normal", 1.0, 1e-4, size(64, 20), dtype=BFLOAT),
    "normal of tensors": call(
        "Torch.normal", tensor(40, 50, low=1e4, high=1e6), tensor(40, 50, low=1e-5, high=1e-4)
    ),
    "binomial that always succeeds": call(
        "Torch.binomial", *(tensor(40, 50, low=each, high=each) for each in (700.0, 1.0))
    ),
    "bernoulli of hardly any": call("Torch.bernoulli", tensor(40, 50, low=0.0, high=1e-6)),
    "dropout of few": call("Functional.dropout", tensor(3), 0.1, True),
}


@pytest.mark.parametrize("case", HARDLY_RANDOM)
def test_honest_draws_that_are_alike_are_not_accused(torch_checker: Checker, case: str) -> None:
    results = [
        torch_checker.check(
            replace(HARDLY_RANDOM[case], name=f"{HARDLY_RANDOM[case].name[:-1]}{number}")
        )
        for number in range(20)
    ]
    assert {result.forward for result in results} == {PASS}
    drawn = [(str(i), read_drawn(result.checks[0].drawn)) for i, result in enumerate(results)]
    verdict, message = judge_pooled([(name, each) for name, each in drawn if each])
    assert verdict is not ERROR, message


def test_native_dropout_gives_the_mask_that_its_output_shows(torch_checker: Checker) -> None:
    payload = call("Torch.native_dropout", leaf(*WIDE), 0.3, True, grads=[tensor(*WIDE), None])
    result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (PASS, PASS)
    assert [tested for _, tested in dtypes(result)] == ["torch.float32", "torch.bool"]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (
            call("Functional.gumbel_softmax", leaf(50, 7), hard=True, grads=[tensor(50, 7)]),
            "the gradient of hard samples depends on draws that the samples do not show",
        ),
        (
            call(
                "Functional.scaled_dot_product_attention",
                *[leaf(1, 2, 4, 8)] * 3,
                dropout_p=0.1,
                grads=[tensor(1, 2, 4, 8)],
            ),
            "does not show what the gradient depends on",
        ),
    ],
)
def test_a_gradient_of_what_does_not_show_is_skipped(
    torch_checker: Checker, payload: TaskPayload, says: str
) -> None:
    result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (PASS, SKIP)
    assert says in result.message


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (call("Functional.fractional_max_pool2d", tensor(1, 2, 8, 8), 2, output_size=4), "pools"),
        (call("Torch.svd_lowrank", tensor(8, 8)), "a randomised algorithm"),
        (
            call(
                "VF.lstm",
                tensor(5, 2, 3),
                [tensor(2, 2, 4)] * 2,
                [tensor(16, 3), tensor(16, 4)] * 2,
                *(False, 2, 0.5, True, False, False),
            ),
            "drops at random between its steps",
        ),
    ],
)
def test_what_no_statistic_can_judge_is_skipped(
    torch_checker: Checker, payload: TaskPayload, says: str
) -> None:
    result = torch_checker.check(payload)
    assert (result.forward, result.checks) == (SKIP, ())
    assert says in result.message


def test_rrelu_that_draws_nothing_is_compared_element_by_element(torch_checker: Checker) -> None:
    result = torch_checker.check(call("Functional.rrelu", tensor(*WIDE)))
    assert (result.forward, result.message) == (PASS, "")
    assert result.checks[0].metrics is not None


def test_every_operator_that_is_always_random_has_a_rule() -> None:
    random = {name for name, drawing in DRAWING.by_name.items() if isinstance(drawing, Always)}
    assert random
    assert random <= set(RULES.by_name)


def test_namesakes_in_two_frameworks_have_rules_of_their_own() -> None:
    name = ApiName("Tensor", "multinomial", 0)
    assert rule_of(name, "mindspore") is RULES.by_name["mindspore.Tensor.multinomial"]
    assert rule_of(name, "pytorch") is RULES.by_name["torch.Tensor.multinomial"]
    assert rule_of(name, "mindspore") != rule_of(name, "pytorch")


class TestFaults:
    """Kernels of the device that draw wrongly."""

    def faulty(
        self,
        checker: Checker,
        monkeypatch: pytest.MonkeyPatch,
        payload: TaskPayload,
        edit: Callable[[Any], Any],
    ) -> TaskResult:
        replace_kernel(monkeypatch, checker.device(), altered(edit))
        return checker.check(payload)

    @pytest.mark.parametrize(
        ("payload", "edit", "says"),
        [
            (WITH_GRADIENT["dropout"], lambda out: out * 0.9, "are not 0 or x * 1.11111"),
            (
                dropping("Functional.dropout", 0.1, True),
                lambda out: out[:1].expand(64, 200),
                "are not 0 or x",
            ),
            (FORWARD["randn"][0], lambda out: out * 1.2, "the variance over the expected one"),
            (FORWARD["randn"][0], lambda out: out[:1].expand(64, 200) + 0, "repeat those from"),
            (FORWARD["randint"][0], lambda out: out + 1, "are outside of 0 to 9"),
            (FORWARD["randperm"][0], lambda out: out.sort().values, "at their own place is 1000"),
            (FORWARD["multinomial"][0], lambda out: out * 0, "are drawn twice without replacement"),
            (FORWARD["bernoulli"][0], lambda out: 1 - out, "the share of ones where"),
            (
                FORWARD["rand"][0],
                lambda out: out.half(),
                "dtype float16 where the dump has float32",
            ),
        ],
    )
    def test_a_wrong_kernel_is_found(
        self,
        torch_checker: Checker,
        monkeypatch: pytest.MonkeyPatch,
        payload: TaskPayload,
        edit: Callable[[Any], Any],
        says: str,
    ) -> None:
        if "dtype" in says:
            payload = call("Torch.rand", *WIDE, output=tensor(*WIDE))
        result = self.faulty(torch_checker, monkeypatch, payload, edit)
        assert result.forward is ERROR
        assert says in result.message

    @pytest.mark.parametrize(
        ("payload", "calls", "kernel", "says"),
        [
            (
                call("Torch.randn", 64, 128),
                16,
                lambda torch: lambda *size: torch.randn(*size) * 1.01,
                "the variance over the expected one",
            ),
            (
                dropping("Functional.dropout", 0.1, True, shape=(64, 128)),
                8,
                lambda torch: (
                    lambda x, p, *_: torch.where(torch.rand_like(x) < 0.11, 0 * x, x / (1 - p))
                ),
                "the share of dropped elements",
            ),
            (
                call(
                    "Functional.scaled_dot_product_attention",
                    *[tensor(2, 2, 64, 16)] * 3,
                    None,
                    0.1,
                ),
                3,
                lambda torch: (
                    lambda q, k, v, *_: torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, None, 0.2
                    )
                ),
                "the spread over the expected one",
            ),
        ],
    )
    def test_a_fault_that_no_call_shows_alone_is_found_by_all_of_them(
        self,
        torch_checker: Checker,
        monkeypatch: pytest.MonkeyPatch,
        payload: TaskPayload,
        calls: int,
        kernel: Callable[[Any], Callable[..., Any]],
        says: str,
    ) -> None:
        import torch

        assert judged_together(torch_checker, payload, calls)[0] is PASS
        replace_kernel(monkeypatch, torch_checker.device(), lambda _: kernel(torch))
        verdict, message = judged_together(torch_checker, payload, calls)
        assert verdict is ERROR
        assert says in message

    @pytest.mark.parametrize(
        ("payload", "kernel"),
        [
            (FORWARD["randn"][0], lambda torch, *size: torch.randn(*size)),
            (
                dropping("Functional.dropout", 0.3, True, shape=(64, 8)),
                lambda torch, x, p, *_: torch.nn.functional.dropout(x, p),
            ),
            (
                call(
                    "Functional.scaled_dot_product_attention",
                    *[tensor(2, 8, 128, 256)] * 3,  # More elements than are drawn three times.
                    None,
                    0.1,
                ),
                lambda torch, *args: torch.nn.functional.scaled_dot_product_attention(*args),
            ),
        ],
    )
    def test_one_call_that_draws_the_same_under_each_seed_is_found(
        self,
        torch_checker: Checker,
        monkeypatch: pytest.MonkeyPatch,
        payload: TaskPayload,
        kernel: Callable[..., Any],
    ) -> None:
        import torch

        def deaf(*args: Any) -> Any:
            torch.manual_seed(3)
            return kernel(torch, *args)

        replace_kernel(monkeypatch, torch_checker.device(), lambda _: deaf)
        result = torch_checker.check(payload)
        assert result.forward is ERROR
        assert "another run with another seed drew the same" in result.message
        drew = [(f"X.{i}", read_drawn(result.checks[0].drawn)) for i in range(2)]
        verdict, message = judge_pooled([(name, each) for name, each in drew if each])
        assert verdict is ERROR
        assert "the draws of X.0, X.1 are the same" in message

    def test_a_gradient_that_forgets_the_mask_is_found(
        self, torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        class Forgetful(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return torch.nn.functional.dropout(x, 0.5)

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad * 2

        replace_kernel(
            monkeypatch, torch_checker.device(), lambda _: lambda x, *_: Forgetful.apply(x)
        )
        result = torch_checker.check(dropping("Functional.dropout", 0.5, True))
        assert (result.forward, result.backward) == (PASS, ERROR)
        assert "backward.output.0: random: " in result.message
        assert (
            "are not the incoming gradient * 2 where the output kept the element" in result.message
        )

    def test_a_device_that_raises_is_an_error_where_the_bench_is_fine(
        self, torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace_kernel(monkeypatch, torch_checker.device(), raising(RuntimeError("no such draw")))
        result = torch_checker.check(WITH_GRADIENT["dropout"])
        assert (result.forward, result.backward) == (ERROR, SKIP)
        assert "the device raised where the bench is fine: RuntimeError: no such draw" in (
            result.message
        )


class TestRepeatable:
    def test_the_same_seed_and_name_draw_the_same_numbers(self, torch_checker: Checker) -> None:
        payload = FORWARD["randn"][0]
        first = torch_checker.check(payload)
        torch_checker.check(FORWARD["rand"][0])
        assert timeless(torch_checker.check(payload)) == timeless(first)
        assert timeless(statistics_checker("pytorch").check(payload)) == timeless(first)

    def test_another_seed_and_another_name_draw_others(self, torch_checker: Checker) -> None:
        payload = FORWARD["randn"][0]
        other = TaskPayload(0, "Torch.randn.7", payload.forward, None)
        messages = [torch_checker.check(each).checks[0].message for each in (payload, other)]
        messages.append(
            statistics_checker("pytorch", options=CheckOptions(seed=1))
            .check(payload)
            .checks[0]
            .message
        )
        assert len(set(messages)) == 3

    @pytest.mark.parametrize("case", ["dropout", "gumbel_softmax", "geometric_ float32"])
    def test_the_two_halves_of_a_check_say_what_the_whole_says(
        self, torch_checker: Checker, case: str
    ) -> None:
        payload = WITH_GRADIENT[case]
        judge = Checker(CheckSettings("pytorch", "statistics", Path()), BENCH)
        measured = torch_checker.measure(payload)
        assert isinstance(measured, Measured)
        whole = torch_checker.check(payload)
        assert timeless(judge.check(payload, measured=measured)) == timeless(whole)


def test_evidence_of_a_random_error_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(lambda out: out * 2))
    result = checker.check(FORWARD["randn"][0])
    assert result.forward is ERROR
    saved = np.load(tmp_path / "Torch.randn.0.forward.output.device.0.npy")
    assert (saved.shape, len(rows(result, "forward"))) == (WIDE, 1)
