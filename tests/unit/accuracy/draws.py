"""Draws of known distributions, and what tests say of them."""

from collections.abc import Sequence

import numpy as np

from ray_precheck.accuracy.random.bounds import (
    FALSE_ALARM_RATE,
)
from ray_precheck.accuracy.random.statistics import (
    Draws,
    StatisticalTest,
    check_random_output,
    draws_of,
)
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import OutputCheck, Verdict
from ray_precheck.schema.values import HostTensor

Rng = np.random.Generator
MANY = 100_000


def rng(seed: int = 0) -> Rng:
    return np.random.Generator(np.random.Philox(key=seed))


def held(values: Array, dtype: str = "float32") -> HostTensor:
    return HostTensor(dtype, round_to_dtype(np.asarray(values, np.float64), dtype))


def drawn(values: Array, dtype: str = "float32") -> Draws:
    return draws_of(held(values, dtype))


def whole(values: Array) -> Draws:
    return draws_of(HostTensor("int64", np.asarray(values, np.int64)))


def judged(tests: Sequence[StatisticalTest], chance: float = FALSE_ALARM_RATE) -> OutputCheck:
    tensor = held(np.zeros(1))
    return check_random_output("X.0.forward.output.0", tensor, tests, "pytorch", chance=chance)


def alarms(tests: Sequence[StatisticalTest], chance: float = FALSE_ALARM_RATE) -> bool:
    return judged(tests, chance).verdict is Verdict.ERROR
