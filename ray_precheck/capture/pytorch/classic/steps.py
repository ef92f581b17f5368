"""Which steps are dumped.

Comes in: a schedule, and `step_schedule.step()` from the training script at the end of each step. Goes out:
whether the current step is dumped. Asked at each call.
"""

import sys
from collections.abc import Callable
from typing import TypeAlias

from ray_precheck.capture.pytorch.classic.errors import HookUsageError

Schedule: TypeAlias = Callable[[int], bool]


def schedule(begin: int = 0, end: int = sys.maxsize, stride: int = 1) -> Schedule:
    """Return a schedule of the steps `begin`, `begin + stride`, .. up to and with `end`.

    `schedule(4, 10, 2)` has the steps 4, 6, 8 and 10; `schedule()` has all.

    Raises:
        HookUsageError: an argument is no whole number, `begin` is negative or after `end`, or `stride` is
            below 1.
    """
    given = f"schedule(begin={begin!r}, end={end!r}, stride={stride!r})"
    if any(type(each) is not int for each in (begin, end, stride)):
        raise HookUsageError(f"{given} was called; expected whole numbers")
    if stride < 1:
        raise HookUsageError(f"{given} was called; expected a stride of 1 or more")
    if not 0 <= begin <= end:
        raise HookUsageError(f"{given} was called; expected 0 <= begin <= end")
    return lambda step: begin <= step <= end and (step - begin) % stride == 0


class StepSchedule:
    """Counts the steps of a training, and knows which of them are dumped."""

    def __init__(self) -> None:
        self.step_num = 0
        self.schedule: Schedule = schedule()

    def set_schedule(self, wanted: Schedule) -> None:
        """Set which steps are dumped.

        Raises:
            HookUsageError: it is no function of the number of a step.
        """
        if not callable(wanted):
            raise HookUsageError(
                f"the schedule is {wanted!r}; expected schedule(begin, end, stride), or a function that"
                " says for the number of a step whether it is dumped"
            )
        self.schedule = wanted

    def is_step_enable(self) -> bool:
        """Return whether the current step is dumped."""
        return self.schedule(self.step_num)

    def step(self) -> None:
        """Go on to the next step."""
        self.step_num += 1

    def reset_step(self) -> None:
        """Begin with step 0 again, as at the start of an epoch."""
        self.step_num = 0


step_schedule = StepSchedule()
