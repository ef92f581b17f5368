"""An output that the bench does not judge."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Stands in a bench's outputs for an output that only the tested kernel can know, with the
    reason.

    A dropout mask's seed, a buffer whose layout differs between versions: such an output exists,
    and any value of the tested side is right.
    """

    reason: str
