"""The verdict about a step that was run with and without capture. No framework runs here."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ray_precheck.capture.verifying.verdict import (
    Looking,
    LookingVerdict,
    Moment,
    Sight,
    StepTrace,
    TracedRun,
    Traces,
    first_difference,
    verify_runs,
)

pytestmark = pytest.mark.unit
PLAIN, CAPTURED, WATCHED, BOTH = TracedRun


def sights(**changed: str) -> list[Sight]:
    """Three operators, each with what it got and gave; `mul_gave="x"` changes a digest."""
    found = []
    for name in ("add", "mul", "sum"):
        for moment in (Moment.GOT, Moment.GAVE, Moment.RANDOM):
            digest = changed.get(f"{name}_{moment.value}", "0")
            found.append(Sight(f"Torch.{name}.0.forward", moment.value, digest))
    return found


def trace(how: TracedRun, loss: str = "1", random: str = "r", **changed: str) -> StepTrace:
    return StepTrace(
        losses={"loss 0": loss},
        gradients={"the gradient of w": "2", "the gradient of b": ""},
        weights={"w after the step": "3"},
        random={"the random state of torch": random},
        sights=sights(**changed) if how.is_watched else [],
        records=3 if how.has_records else 0,
    )


def verdict_of(make: Callable[[TracedRun, int], StepTrace]) -> tuple[LookingVerdict, list[Any]]:
    """Return the verdict, and the runs that it took; `make` gets the number of the run of its kind."""
    made: list[TracedRun] = []

    def run(how: TracedRun) -> Traces:
        made.append(how)
        return {"": make(how, made.count(how))}

    return verify_runs(run), made


def test_three_runs_are_enough_where_looking_changes_nothing() -> None:
    verdict, made = verdict_of(lambda how, number: trace(how))
    assert verdict.changed_nothing
    assert made == [PLAIN, PLAIN, CAPTURED]
    assert str(verdict) == (
        "looking changed nothing: with 3 records and without, 1 loss, 1 gradient, 1 parameter after the"
        " step and the random states are bit-equal"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("mul_gave", "Torch.mul.0.forward, which gave something else or changed what it got"),
        ("sum_got", "Torch.sum.0.forward, which got something else"),
        ("add_random", "Torch.add.0.forward, behind which the random states differ"),
    ],
)
def test_the_first_operator_at_which_looking_changed_something_is_named(
    changed: str, said: str
) -> None:
    verdict, made = verdict_of(
        lambda how, number: trace(how, "9", **{changed: "x"}) if how.has_records else trace(how)
    )
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert f"loss 0 differs; the first operator is {said}" in verdict.sentence
    assert said.startswith(verdict.operator)
    assert made == [PLAIN, PLAIN, CAPTURED, WATCHED, WATCHED, BOTH]


def test_a_random_state_that_moves_is_a_change() -> None:
    verdict, _ = verdict_of(
        lambda how, number: trace(how, random="moved" if how.has_records else "r")
    )
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "the random state of torch differs" in verdict.sentence


def test_a_random_state_that_no_run_repeats_tells_nothing() -> None:
    count = iter(range(9))
    verdict, _ = verdict_of(lambda how, number: trace(how, random=str(next(count))))
    assert verdict.changed_nothing


def test_a_step_that_does_not_repeat_itself_says_nothing() -> None:
    def make(how: TracedRun, number: int) -> StepTrace:
        return trace(how, loss=str(number), mul_gave=str(number))

    verdict, made = verdict_of(make)
    assert verdict.looking is Looking.UNKNOWN
    assert verdict.operator == "Torch.mul.0.forward"
    assert "the step does not repeat itself, loss 0 differs" in verdict.sentence
    assert made == [PLAIN, PLAIN, WATCHED, WATCHED]


def test_a_difference_that_comes_and_goes_says_nothing() -> None:
    verdict, _ = verdict_of(lambda how, number: trace(how, loss="9" if how is CAPTURED else "1"))
    assert verdict.looking is Looking.UNKNOWN


def test_hooks_that_change_something_without_a_record_are_told() -> None:
    verdict, _ = verdict_of(lambda how, number: trace(how, loss="1" if how is PLAIN else "9"))
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "the hooks do it by themselves" in verdict.sentence


def test_a_capture_without_a_record_says_nothing() -> None:
    def make(how: TracedRun, number: int) -> StepTrace:
        found = trace(how)
        found.records = 0
        return found

    assert verdict_of(make)[0].looking is Looking.UNKNOWN


def test_a_step_without_loss_gradient_and_output_says_nothing() -> None:
    verdict, _ = verdict_of(lambda how, number: StepTrace(weights={"w": "1"}, records=1))
    assert verdict.looking is Looking.UNKNOWN


def test_the_process_that_differs_is_named() -> None:
    def run(how: TracedRun) -> Traces:
        changed = trace(how, "9", mul_gave="x") if how.has_records else trace(how)
        return {"rank 0": trace(how), "rank 1": changed}

    sentence = verify_runs(run).sentence
    assert "loss 0 of rank 1 differs; rank 1: the first operator is Torch.mul.0" in sentence
    equal = verify_runs(lambda how: {"rank 0": trace(how), "rank 1": trace(how)})
    assert equal.sentence.endswith("bit-equal in 2 processes")


def test_what_one_process_lacks_is_a_difference() -> None:
    both = {"rank 0": trace(PLAIN), "rank 1": trace(PLAIN)}
    verdict = verify_runs(lambda how: both if how is PLAIN else {"rank 0": trace(how)})
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "rank 1 (in one run only)" in verdict.sentence


def test_what_differs_between_runs_that_are_alike_is_no_first_difference() -> None:
    """Memory that nobody has filled differs anyway; the operator behind it is the one."""
    watched, again = trace(WATCHED, add_gave="a"), trace(WATCHED, add_gave="b")
    captured = trace(BOTH, add_gave="c", sum_gave="x")
    found = first_difference(watched, captured, again)
    assert found is not None
    assert found.key == "Torch.sum.0.forward"


def test_a_step_that_ends_badly_with_capture_alone_is_changed() -> None:
    def make(how: TracedRun, number: int) -> StepTrace:
        if not how.has_records:
            return trace(how)
        raised = StepTrace(raised="ValueError: no")
        raised.sights = sights(mul_gave="x")[:5] if how.is_watched else []
        return raised

    verdict, _ = verdict_of(make)
    assert verdict.looking is Looking.CHANGED_SOMETHING
    assert "how the step ends (ValueError: no) differs" in verdict.sentence
    assert verdict.operator == "Torch.mul.0.forward"


def test_a_trace_is_the_same_from_json() -> None:
    found = trace(BOTH)
    assert StepTrace.from_json(json.loads(json.dumps(found.to_json()))) == found
