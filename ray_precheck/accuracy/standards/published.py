"""`published`: for each API and dtype the standard that is published for it.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. The table is in
`choice`.
"""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.accuracy.comparison import Comparison
from ray_precheck.accuracy.standards.absolute import Absolute
from ray_precheck.accuracy.standards.base import Judgement, Standard
from ray_precheck.accuracy.standards.benchmark import Benchmark
from ray_precheck.accuracy.standards.binary import Binary
from ray_precheck.accuracy.standards.choice import published_standard
from ray_precheck.accuracy.standards.thousandth import Thousandth
from ray_precheck.accuracy.standards.ulp import Ulp

_CHOICES: dict[str, Standard] = {
    each.name: each for each in (Benchmark(), Absolute(), Binary(), Ulp(), Thousandth())
}


@dataclass(frozen=True, slots=True)
class Published:
    """Leaves each output to the standard that msprobe's lists name for it."""

    name: ClassVar[str] = "published"
    columns: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys(heading for each in _CHOICES.values() for heading in each.columns)
    )

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the standard of the API, the dtype and the direction."""
        name = published_standard(
            comparison.type_name, comparison.dtype, comparison.direction, comparison.framework
        )
        return _CHOICES[name].judge(comparison)
