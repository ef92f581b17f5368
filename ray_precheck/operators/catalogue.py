"""All tables of this folder.

Goes out: `TABLES`. Called by `explain` and by the tests, which look at every fact.
"""

from typing import Any

from ray_precheck.operators.accuracy import ALLOWANCE, LEVEL, PUBLISHED_STANDARD
from ray_precheck.operators.drawing import DRAWING, UNSEEDED
from ray_precheck.operators.effects import (
    AUGMENTED,
    CHANGES,
    MULTILINEAR,
    OF_A_STORAGE,
    READS_BITS,
    SIZED_BY_VALUES,
)
from ray_precheck.operators.exact import AMBIGUOUS
from ray_precheck.operators.refused import REFUSED
from ray_precheck.operators.table import FactTable

TABLES: tuple[FactTable[Any], ...] = (
    REFUSED,
    DRAWING,
    UNSEEDED,
    AMBIGUOUS,
    AUGMENTED,
    CHANGES,
    READS_BITS,
    OF_A_STORAGE,
    SIZED_BY_VALUES,
    MULTILINEAR,
    PUBLISHED_STANDARD,
    LEVEL,
    ALLOWANCE,
)
