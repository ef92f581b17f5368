"""The column `HonestBy`: which honest implementation decided, and that it changes no other cell."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from standard_cases import comparison, normal
from test_accuracy_auto import API, Implementations, off

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.base import Comparison, added_headings
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

BENCH = normal(4096) + 8.0


class WithMore(Implementations):
    """Implementations that know the least errors of the first one, or have further ones of fewer bits."""

    def __init__(
        self,
        *found: Any,
        least: tuple[float, float] | None = None,
        coarse: Sequence[Array] = (),
        **more: Any,
    ) -> None:
        super().__init__(*found, **more)
        self.coarse, self.formats, self._least = coarse, "TF32 products", least

    def least_errors(self, bench_out: Array) -> tuple[float, float] | None:
        """Return the errors that were given."""
        return self._least


def half(size: float, *found: Array, **more: Any) -> Comparison:
    """A float16 output with errors of a size beside implementations."""
    implementations = WithMore(*found, **more)
    tested = off(BENCH, size, seed=2)
    return comparison(tested, BENCH, "float16", api=API, implementations=implementations)


def single(size: float, *found: Array, **more: Any) -> Comparison:
    """The same in float32."""
    implementations = WithMore(*found, **more)
    tested = off(BENCH, size, "float32", seed=2)
    return comparison(tested, BENCH, api=API, implementations=implementations)


def steep(size: float) -> list[Array]:
    return [BENCH + size * share for share in (1.0, -1.0, 2.0**-6, -(2.0**-6))]


def wrong_at_a_step() -> Comparison:
    """One element that the kernel does not explain, and that jumps where the inputs move."""
    tested = off(BENCH, 1e-6, "float32", seed=2)
    tested[7] += 3.0
    jumps = BENCH.copy()
    jumps[7] += 3.0
    moved = [jumps, BENCH, jumps, BENCH]
    found = Implementations(round_to_dtype(BENCH, "float32"), moved=moved)
    return comparison(tested, BENCH, api=API, implementations=found)


def wrong_where_it_is_steep() -> Comparison:
    """An implementation with the larger RMSE, and moved inputs with the larger error in one place."""
    sizes = np.where(np.arange(4096) == 7, 0.016, 1e-3)
    moved = [BENCH + sizes * share for share in (1.0, -1.0, 2.0**-6, -(2.0**-6))]
    found = Implementations(off(BENCH, 1.5e-3, "float32"), moved=moved)
    tested = off(BENCH, 1e-3, "float32", seed=2)
    tested[7] += 0.06
    return comparison(tested, BENCH, api=API, implementations=found)


ROUNDED = round_to_dtype(BENCH, "float32")


@pytest.mark.parametrize(
    ("case", "passes", "by"),
    [
        pytest.param(half(0.0), True, "equality", id="no difference"),
        pytest.param(half(0.001, off(BENCH, 0.1)), True, "rounding once", id="first stage"),
        pytest.param(half(0.1, off(BENCH, 0.1)), True, "rounded steps", id="implementation"),
        pytest.param(
            single(1e-4, ROUNDED, least=(1e-4, 2e-4)), True, "operand norms", id="least errors"
        ),
        pytest.param(single(7e-3, ROUNDED, moved=steep(1e-3)), True, "moved inputs", id="steep"),
        pytest.param(wrong_where_it_is_steep(), True, "moved inputs", id="steep in one place"),
        pytest.param(
            single(1e-3, ROUNDED, coarse=[off(BENCH, 1e-3, "float32")]),
            True,
            "rounded operands",
            id="TF32",
        ),
        pytest.param(
            half(0.08, off(BENCH, 0.02), kernel=off(BENCH, 0.04, seed=5)),
            True,
            "CPU kernel",
            id="kernel",
        ),
        pytest.param(wrong_at_a_step(), True, "left-out elements", id="jump"),
        pytest.param(half(0.1), False, "published", id="nothing known"),
        # Of an error it is the one with the largest RMSE, in whatever order.
        pytest.param(
            half(1.0, off(BENCH, 0.1), off(BENCH, 0.05)), False, "rounded steps", id="error"
        ),
        pytest.param(
            half(1.0, off(BENCH, 0.02), kernel=off(BENCH, 0.04, seed=5)),
            False,
            "CPU kernel",
            id="error beside a kernel",
        ),
        pytest.param(
            half(1.0, np.asarray(half(0.0).device_out)), False, "rounding once", id="exact ones"
        ),
        pytest.param(
            single(1.0, off(BENCH, 1e-3, "float32"), moved=steep(1e-6)),
            False,
            "rounded steps",
            id="error beside moved inputs",
        ),
    ],
)
def test_the_row_names_what_decided(case: Comparison, passes: bool, by: str) -> None:
    found = Auto().judge(case)
    assert (found.verdict is Verdict.PASS, dict(found.columns)["HonestBy"]) == (passes, by)


def test_whole_numbers_are_decided_by_equality_or_by_what_excuses_them() -> None:
    bench = np.arange(100)
    tested = bench.copy()
    tested[7] += 1
    for implementations, by in (
        ([], "equality"),
        ([tested], "rounded steps"),
        (Implementations(bench, moved=[tested]), "moved inputs"),
    ):
        case = comparison(tested, bench, "int64", api=API, implementations=implementations)
        assert dict(Auto().judge(case).columns)["HonestBy"] == by


@pytest.mark.parametrize("error", [0.0, 0.1, np.nan])
def test_exact_functions_and_other_nan_are_decided_by_equality(error: float) -> None:
    tested = BENCH + error * (np.arange(4096) == 7)
    case = replace(comparison(tested, BENCH, "float16", api=API), is_exact=True)
    assert dict(Auto().judge(case).columns)["HonestBy"] == "equality"
    if np.isnan(error):
        case = replace(case, is_exact=False, implementations=lambda: [case.bench_once])
        assert dict(Auto().judge(case).columns) == {"HonestBy": "equality"}


def test_it_stands_behind_the_errors_that_it_explains() -> None:
    headings = added_headings(Auto())
    assert headings[headings.index("HonestMaxAbsErr") + 1] == "HonestBy"
