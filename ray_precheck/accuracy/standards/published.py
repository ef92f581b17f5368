"""`published`: for each API and dtype the standard that is published for it.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`.

The lists of APIs are in `operators.accuracy`. The choice by dtype is that of mindstudio-probe 26.2,
precision_standard/standard_register.py, _get_standard_category: `binary` for integers and booleans,
units in the last place for fp8 outputs, `benchmark` for APIs in no list.
msprobe 26.2 itself judges every float16, bfloat16 and float32 output by `benchmark` before it looks
into the lists; its versions up to 25 looked into them first, as is done here.
"""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.accuracy.standards.absolute import Absolute
from ray_precheck.accuracy.standards.base import Comparison, Judgement, Standard
from ray_precheck.accuracy.standards.benchmark import Benchmark
from ray_precheck.accuracy.standards.binary import Binary
from ray_precheck.accuracy.standards.thousandth import Thousandth
from ray_precheck.accuracy.standards.ulp import Ulp
from ray_precheck.operators.accuracy import PUBLISHED_STANDARD
from ray_precheck.schema.dtypes import DTYPES

_FP8 = ("float8_e4m3fn", "float8_e5m2")


def published_standard(type_name: str, dtype: str, direction: str, framework: str = "") -> str:
    """Return the name of the standard that is published for an API of a framework's dump, `Mint.matmul`,
    and a dtype.

    The lists are of forward operators: an operator that moves data forward may sum backward (`gather`),
    so a float gradient is judged by `benchmark` if the list says `binary`; so is what a call changes beside
    its outputs (the weights that `embedding` renormalises).
    """
    if DTYPES[dtype].kind not in ("float", "complex"):
        return "binary"
    if dtype in _FP8:
        return "ulp"
    standard = PUBLISHED_STANDARD.of(type_name, framework) or "benchmark"
    return "benchmark" if standard == "binary" and direction != "forward" else standard


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
