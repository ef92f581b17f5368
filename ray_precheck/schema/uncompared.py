"""An output that the bench does not judge."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Stands in a bench's outputs for one that only the tested kernel can know, with the reason.

    A dropout mask's seed, a buffer whose layout differs between versions: there is such an output,
    and whatever the tested side made of it is right.
    """

    reason: str
