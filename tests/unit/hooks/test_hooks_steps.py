"""Which steps are dumped: `schedule` and `step_schedule` of torch_npu.hooks."""

import sys

import pytest

from ray_precheck.hooks import HookUsageError, schedule, step_schedule

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, list(range(20))),
        ({"begin": 4, "end": 10, "stride": 2}, [4, 6, 8, 10]),
        ({"begin": 5, "stride": 3}, [5, 8, 11, 14, 17]),
        ({"end": 10, "stride": 3}, [0, 3, 6, 9]),
        ({"begin": 1, "end": 2}, [1, 2]),
        ({"begin": 3, "end": 3}, [3]),
    ],
)
def test_a_schedule_has_the_steps_of_the_guide(
    arguments: dict[str, int], expected: list[int]
) -> None:
    wanted = schedule(**arguments)
    assert [step for step in range(20) if wanted(step)] == expected


def test_a_schedule_without_an_end_goes_on_for_ever() -> None:
    assert schedule()(sys.maxsize)
    assert schedule(4, 10, 2)(10)
    assert not schedule(4, 10, 2)(12)


@pytest.mark.parametrize(
    ("begin", "end", "stride", "expected"),
    [
        (0, 10, 0, "expected a stride of 1 or more"),
        (0, 10, -1, "expected a stride of 1 or more"),
        (5, 4, 1, "expected 0 <= begin <= end"),
        (-1, 4, 1, "expected 0 <= begin <= end"),
        (0, 4.0, 1, "expected whole numbers"),
        ("0", 4, 1, "expected whole numbers"),
        (True, 4, 1, "expected whole numbers"),
    ],
)
def test_a_wrong_schedule_is_one_sentence(begin: int, end: int, stride: int, expected: str) -> None:
    with pytest.raises(HookUsageError) as caught:
        schedule(begin, end, stride)
    given = f"schedule(begin={begin!r}, end={end!r}, stride={stride!r}) was called; "
    assert str(caught.value) == given + expected


def test_wrong_arguments_are_runtime_errors_as_they_were() -> None:
    with pytest.raises(RuntimeError):
        schedule(stride=0)


def test_steps_are_counted_and_begin_again() -> None:
    step_schedule.reset_step()
    step_schedule.set_schedule(schedule(1, 2))
    enabled = []
    for _ in range(4):
        enabled.append(step_schedule.is_step_enable())
        step_schedule.step()
    assert step_schedule.step_num == 4
    step_schedule.reset_step()
    assert (step_schedule.step_num, enabled) == (0, [False, True, True, False])
    step_schedule.set_schedule(schedule())


def test_a_schedule_must_be_a_function() -> None:
    with pytest.raises(HookUsageError, match=r"^the schedule is 5; expected schedule\(begin, end"):
        step_schedule.set_schedule(5)  # type: ignore[arg-type]
