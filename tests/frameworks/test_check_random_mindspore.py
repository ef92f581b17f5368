"""Random operators of MindSpore, from record to verdict."""

import pytest
from records import call, judged_together, ms_tensor, timeless

from ray_precheck.check.checker import Checker
from ray_precheck.check.random.rules import is_seeded
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.frameworks

WIDE = (64, 200)
PASS, NONE, SKIP, ERROR = Verdict.PASS, Verdict.NONE, Verdict.SKIP, Verdict.ERROR
JUDGED = "its output is random: judged by statistics"
MS_WIDE = ms_tensor(*WIDE)
MINDSPORE = {
    "dropout": call("Functional.dropout", MS_WIDE, 0.1, grads=[MS_WIDE]),
    "dropout1d": call(
        "Functional.dropout1d", ms_tensor(16, 50, 7), 0.3, grads=[ms_tensor(16, 50, 7)]
    ),
    "dropout3d": call(
        "Functional.dropout3d", ms_tensor(4, 50, 2, 2, 3), 0.3, grads=[ms_tensor(4, 50, 2, 2, 3)]
    ),
    "rand": call("Functional.rand", *WIDE),
    "randn_like": call("Functional.randn_like", MS_WIDE),
    "randint": call("Functional.randint", 0, 10, WIDE),
    "randperm": call("Functional.randperm", 100),
    "normal": call("Functional.normal", WIDE, 0.5, 2.0),
    "normal of tensors": call("Functional.normal", WIDE, ms_tensor(200), ms_tensor(200, low=0.5)),
    "uniform": call(
        "Functional.uniform",
        WIDE,
        ms_tensor(1, low=-1.0, high=-1.0),
        ms_tensor(1, low=2.0, high=2.0),
    ),
    "laplace": call("Functional.laplace", WIDE, ms_tensor(1), ms_tensor(1, low=0.5)),
    "standard_normal": call("Functional.standard_normal", WIDE),
    "bernoulli": call("Functional.bernoulli", MS_WIDE, 0.3),
    "multinomial": call("Functional.multinomial", ms_tensor(100, 10, low=0.0), 5),
    "multinomial without replacement": call(
        "Functional.multinomial", ms_tensor(100, 10, low=0.0), 5, False
    ),
    "shuffle": call("Functional.shuffle", ms_tensor(100, 10)),
    "gumbel_softmax": call("Functional.gumbel_softmax", ms_tensor(1000, 10), hard=True),
    "cauchy": call("Tensor.cauchy", MS_WIDE),
    "log_normal": call("Tensor.log_normal", MS_WIDE),
}


@pytest.mark.parametrize("case", MINDSPORE)
def test_random_operators_of_mindspore_are_judged_by_statistics(
    mindspore_checker: Checker, case: str
) -> None:
    payload = MINDSPORE[case]
    result = mindspore_checker.check(payload)
    expected = PASS if payload.backward else NONE
    assert (result.forward, result.backward, result.message) == (PASS, expected, JUDGED)
    # Also of those whose generator takes no seed: files are the same in every run.
    mindspore_checker.check(MINDSPORE["rand"])
    assert timeless(mindspore_checker.check(payload)) == timeless(result)


@pytest.mark.parametrize("case", MINDSPORE)
def test_honest_calls_of_mindspore_are_not_accused_together(
    mindspore_checker: Checker, case: str
) -> None:
    prefix, api, number = MINDSPORE[case].name.split(".")
    # `ops.randperm` has a seed of its own, which is 0 by default.
    if api == "randperm" or not is_seeded(ApiName(prefix, api, int(number)), "mindspore"):
        check = mindspore_checker.check(MINDSPORE[case]).checks[0]
        assert check.drawn == ""
        assert check.message.endswith("not judged together")
        return
    verdict, message = judged_together(mindspore_checker, MINDSPORE[case], 6)
    assert verdict is PASS, message


@pytest.mark.parametrize("api", ["Mint.rand", "Mint.randn", "MintFunctional.dropout"])
def test_a_random_operator_without_a_kernel_is_skipped(
    mindspore_checker: Checker, api: str
) -> None:
    result = mindspore_checker.check(call(api, MS_WIDE) if "drop" in api else call(api, *WIDE))
    assert result.forward is SKIP
    assert "the CPU has no kernel for it" in result.message


def test_categories_drawn_alike_in_every_row_are_found(mindspore_checker: Checker) -> None:
    """MindSpore 2.10 on the CPU: random_categorical draws one row of numbers for all rows."""
    result = mindspore_checker.check(
        call("Functional.random_categorical", ms_tensor(500, 10, low=0.0), 50)
    )
    assert result.forward is ERROR
    # 50 draws for all 500 rows miss the weights by far, whatever was drawn before them.
    assert "the largest gap to the given weights is " in result.message
