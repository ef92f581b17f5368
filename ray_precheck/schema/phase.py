"""The phases of a runner's work, which a check process tells to the worker that watches it."""

from enum import IntEnum


class Phase(IntEnum):
    """The parts of a piece of work; the value fits a byte.

    A device that gives no answer in time is an error of the piece. A bench that takes too long says
    nothing about the device, so that the time in BENCH has a limit of its own.
    """

    INPUTS = 0
    DEVICE = 1
    BENCH = 2
