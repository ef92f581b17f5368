"""How a call is to be run, its rows, and the sentences that explain an error by rounding."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.outputs import Judge
from ray_precheck.accuracy.standards.base import ROUNDING
from ray_precheck.accuracy.standards.msprobe import MSPROBE, Msprobe
from ray_precheck.accuracy.standards.published import Absolute
from ray_precheck.check.decode import call_plan, decoded_record
from ray_precheck.check.inputs import Inputs, make_inputs
from ray_precheck.check.judge import DirectionCheck, compared
from ray_precheck.check.row import with_explanations
from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import Constant, HostCall, HostTensor, SequenceSpec, TensorSpec

pytestmark = pytest.mark.unit

JUDGE = Judge("pytorch")


def spec(dtype: str = "float32", requires_grad: bool | None = None) -> TensorSpec:
    return TensorSpec(dtype, (2,), 0.0, 1.0, requires_grad)


def record(*args: Any, api: str = "add", backward: bool = True) -> ApiRecord:
    grads = () if backward else None
    return ApiRecord(ApiName("Torch", api, 0), args, (), (), grads_in=grads, grads_out=grads)


def tensor(dtype: str, *values: float) -> HostTensor:
    return HostTensor(dtype, np.array(values, dtype))


def test_without_a_backward_record_no_gradient_is_wanted() -> None:
    assert call_plan(record(spec(requires_grad=True), backward=False)) == CallPlan()


def test_gradients_are_wanted_of_the_tensors_that_require_one() -> None:
    args = (
        spec(requires_grad=False),
        Constant(1),
        SequenceSpec((spec("int64"), spec(requires_grad=True))),
    )
    assert call_plan(record(*args)).differentiable == (2,)


@pytest.mark.parametrize("flag", [None, False])
def test_where_none_is_flagged_gradients_of_all_floating_tensors_are_wanted(
    flag: bool | None,
) -> None:
    args = (spec("int64"), spec("bfloat16", flag), spec("bool"), spec("complex64", flag))
    assert call_plan(record(*args)).differentiable == (1, 3)


def test_a_plan_says_whether_the_first_argument_is_changed() -> None:
    assert call_plan(record(spec(), api="add_")).in_place
    assert call_plan(record(spec(), api="add_", backward=False)).in_place
    assert not call_plan(record(spec())).in_place


def direction(*pairs: tuple[Any, Any], notes: tuple[str, ...] = ()) -> DirectionCheck:
    """Compare pairs of leaves, the tested one first."""
    rows = (
        compared(f"Torch.a.b.0.forward.output.{position}", tested, bench, JUDGE)
        for position, (tested, bench) in enumerate(pairs)
    )
    return DirectionCheck(tuple(rows), notes)


SAME = tensor("float32", 1), tensor("float64", 1)
EMPTY = tensor("float32"), tensor("float64")


def test_a_direction_is_in_error_where_one_of_its_rows_is() -> None:
    assert (direction(SAME).verdict, direction(SAME).messages) == (Verdict.PASS, [])
    check = direction(SAME, (3, 4), (3, 3), notes=("note",))
    assert check.verdict is Verdict.ERROR
    assert [row.name[-1] for row in check.failing] == ["1"]
    assert check.messages == ["forward.output.1: 3 where the bench has 4", "note"]
    assert (check.rows[1].tested, check.rows[1].bench) == (3, 4)


def test_a_direction_without_a_row_that_passed_is_skipped_with_the_reason() -> None:
    check = direction()
    assert (check.verdict, check.messages) == (Verdict.SKIP, ["there was no output to compare"])
    check = direction(EMPTY)
    assert check.verdict is Verdict.SKIP
    assert check.messages == ["forward.output.0: no element to compare: the output is empty"]
    check = direction(EMPTY, (3, 3))
    assert (check.verdict, check.messages) == (Verdict.PASS, [])
    assert direction(EMPTY, (3, 3), (3, 4)).verdict is Verdict.ERROR


def inputs(api: str, first: HostTensor) -> Inputs:
    payload = TaskPayload(0, "x", None, None)
    decoded = decoded_record(payload, record(spec(), api=api))
    return replace(make_inputs(decoded, GeneratedTensors(0, "x")), call=HostCall((first,), {}))


def test_only_the_rule_of_msprobe_is_explained_by_rounding_and_causes() -> None:
    """The other standards measure rounding themselves, and name causes."""
    tested, given = tensor("float32", *range(8, 0, -1)), tensor("float32", *range(8))
    messages = []
    for standard in (Msprobe(), Absolute()):
        bench = HostTensor("float64", -tested.data.astype("float64"))
        name = "Torch.neg.0.forward.output.0"
        row = compared(name, tested, bench, Judge("pytorch", standard))
        leaves = [bench]
        check = DirectionCheck(  # it depends on no input
            (row,), recompute=lambda *_, leaves=leaves: leaves
        )
        messages.append(with_explanations(inputs("neg", given), check, standard).checks[0].message)
    cause = "likely cause: the sign of every element is flipped"
    assert messages[0].endswith(f"is not below 0.0001; {cause}")
    assert messages[1].startswith("share of elements whose relative error is above")
    assert messages[1].count(cause) == 1


def explained(
    api: str, given: HostTensor, tested: HostTensor, function: Callable[[np.ndarray], float]
) -> tuple[DirectionCheck, str]:
    """Check one scalar output against a bench in float64, and explain its error."""

    def bench(again: HostCall, cotangents: list[HostTensor | None]) -> list[Leaf]:
        data = again.args[0].data.astype(np.float64)
        return [HostTensor("float64", np.array([function(data)]))]

    first = bench(HostCall((given,), {}), [])[0]
    row = compared("Torch.x.0.forward.output.0", tested, first, JUDGE)
    check = with_explanations(inputs(api, given), DirectionCheck((row,), recompute=bench), MSPROBE)
    return check, check.checks[0].message


def test_the_error_of_a_sum_is_explained_by_the_magnitudes_of_its_terms() -> None:
    check, message = explained(
        "sum", tensor("float32", 8192, -8191), tensor("float32", 1.001), np.sum
    )
    assert check.verdict is Verdict.ERROR
    assert (
        f"; {ROUNDING} the magnitudes of the summed terms add up to 16383, and the error" in message
    )


def test_an_error_of_an_ill_conditioned_function_is_explained() -> None:
    inputs = tensor("float32", 1.0 - 2.0**-20)
    bench = 1 / (1 - float(inputs.data[0]))
    _, message = explained(
        "rsub", inputs, tensor("float32", bench * 1.01), lambda x: float(1 / (1 - x[0]))
    )
    assert f"{ROUNDING} ill-conditioned: moving the inputs by half a unit" in message


@pytest.mark.parametrize("api", ["sum", "rsub"])
def test_a_wrong_result_is_not_put_down_to_rounding(api: str) -> None:
    check, message = explained(api, tensor("float32", 1, 2), tensor("float32", 3.5), np.sum)
    assert check.verdict is Verdict.ERROR
    assert ROUNDING not in message


def test_what_passes_is_not_explained() -> None:
    check, message = explained("sum", tensor("float32", 1, 2), tensor("float32", 3), np.sum)
    assert (check.verdict, message) == (Verdict.PASS, "")
