"""What is done with a record at a time."""

from enum import Enum


class Stage(Enum):
    """What is done with a record: all of it, the device's half, or the bench's half."""

    CHECK = "check"
    DEVICE = "device"
    BENCH = "bench"
