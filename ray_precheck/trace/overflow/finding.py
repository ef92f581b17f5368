"""What is said of one record that met NaN or infinity.

Goes out: `Birth`, `OverflowFinding` and `Origin`. Made by the walk through a capture.
"""

from dataclasses import dataclass
from enum import Enum

from ray_precheck.trace.overflow.values import NonFinite


class Birth(Enum):
    """What a record did with values that are not finite."""

    BORN = "birth"
    PASSED_ON = "passed on"
    MASKED = "masked"
    RE_EMERGED = "re-emerged"
    MEANT = "meant"
    CAST = "cast"
    CAME_IN = "came in"
    GONE = "taken away"


@dataclass(slots=True)
class OverflowFinding:
    """A record that met NaN or infinity.

    `key` is that of the record, `tensor` the name of the value in it, as `output.0`. `is_alarm`: an
    overflow was born here, or NaN or +inf came in from outside, and was not meant.
    """

    key: str
    tensor: str
    found: NonFinite
    birth: Birth
    dtype: str
    message: str
    is_alarm: bool = False

    @property
    def place(self) -> str:
        """The record and the value in it: `Torch.exp.0.forward.output.0`."""
        return f"{self.key}.{self.tensor}"


@dataclass(slots=True, eq=False)
class Origin:
    """Where values that are not finite came from, as they are followed through the records.

    `may_be_meant`: they are -inf that no operator has computed, as in a mask of attention; with `is_proven`
    an operator has made finite values of them. `is_masked`: so has one of the others, since they were
    last seen. `taken_by` is the key of the first record that took some of them away, "" for none, `reaches`
    that a loss, a gradient or a state may hold them, and `is_unsure` that statistics cannot follow them.
    """

    finding: OverflowFinding
    may_be_meant: bool = False
    is_proven: bool = False
    is_masked: bool = False
    taken_by: str = ""
    reaches: bool = False
    is_unsure: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant of the program."""
        return self.finding.birth is Birth.CAME_IN and not self.finding.is_alarm
