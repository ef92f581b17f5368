"""What is known of a record and of its values, whatever it was measured with.

Goes out: nouns, and the protocol `Evidence` of their source. Files of tensors give measured differences,
contents and own errors by replay (`commands.locate.replay`); statistics and sketches give estimates
(`estimate`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ray_precheck.trace.items import Item


class ValueEvidence(NamedTuple):
    """How a value of the target differs from that of the golden run.

    `difference` is the relative L2 distance, or the largest relative difference of the statistics; infinite
    where NaN, infinities or shapes differ, NaN where it is not known. `order` says that both hold the same
    values in another order, "" that they do not, or that it is not known. `slack` is how much of the
    difference one element that was rounded to its neighbour explains, where Max and Min tell of it.
    """

    difference: float = math.nan
    order: str = ""
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnError:
    """What a record errs on the inputs that it got, and what its inputs bring with them.

    Both are in units of what rounding explains: the error of the worst honest implementation of this call
    that `auto` knows. `verdict` is a cell of the precheck: pass, error or SKIP. `own` is |run(x) - f64(x)|,
    `inherited` |f64(x) - f64(x_golden)|, None where there is no golden call, and `golden` the own error of
    the golden run's call. `index` is the place of the largest error in `output`. `is_estimate`:
    nothing was replayed, the difference from the golden run was weighed (`estimate`).
    """

    verdict: str
    own: float = math.nan
    inherited: float | None = None
    golden: float | None = None
    golden_verdict: str = ""
    output: str = ""
    index: str = ""
    cause: str = ""
    message: str = ""
    is_estimate: bool = False

    @property
    def is_guilty(self) -> bool:
        """Whether rounding does not explain the error."""
        return self.verdict == "error"


class Evidence(Protocol):
    """Where the facts about records come from; keys are those of the target's records."""

    @property
    def estimates(self) -> bool:
        """Whether own errors are estimates, because no inputs were captured."""

    @property
    def sees_elements(self) -> bool:
        """Whether differences are those of elements; else those of statistics stand for them."""

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""

    def own(self, key: str) -> OwnError | None:
        """Return the own error of a record; None where it was not replayed."""
