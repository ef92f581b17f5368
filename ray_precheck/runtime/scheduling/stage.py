"""The stages of a record, which a worker runs together or one at a time."""

from enum import Enum


class Stage(Enum):
    """The part of a record that a worker runs: all of it, the device's half, or the bench's half."""

    CHECK = "check"
    DEVICE = "device"
    BENCH = "bench"
