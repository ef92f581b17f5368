"""Tables of quantiles, and their fit to a mean and a variance."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.inputs.distribution import (
    CELLS,
    ONE_SIDED,
    TWO_SIDED,
    Shape,
    _clipped_sums,
    _upper_half,
    fit_clipped,
    fit_inside,
    moments,
    one_sided,
    two_sided,
)

pytestmark = pytest.mark.unit

SHAPES = [two_sided(power) for power in TWO_SIDED] + [one_sided(power) for power in ONE_SIDED]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_mean_0_and_variance_1_and_rises(shape: Shape) -> None:
    mean, second = moments(shape.edges)
    assert mean == pytest.approx(0.0, abs=1e-12)
    assert second == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(shape.edges) >= 0).all()
    assert len(shape.edges) == CELLS + 1


def test_moments_are_those_of_what_is_drawn_from_a_table() -> None:
    edges = np.array([0.0, 1.0, 4.0])
    inside = (np.arange(1000) + 0.5) / 1000
    values = np.concatenate([inside, 1.0 + 3.0 * inside])
    mean, second = moments(edges)
    assert mean == pytest.approx(values.mean(), abs=1e-6)
    assert second == pytest.approx((values**2).mean(), abs=1e-5)


def test_the_normal_shape_has_the_quantiles_of_the_normal_distribution() -> None:
    places = np.arange(1, CELLS) / CELLS
    expected = [NormalDist().inv_cdf(place) for place in places]
    np.testing.assert_allclose(two_sided(1).edges[1:-1], expected, rtol=5e-4, atol=1e-8)


def test_no_quantile_is_so_near_a_tie_that_another_library_would_round_it_otherwise() -> None:
    # Rounded to 9 digits: the distance to the next tie is far more than the error of any log.
    for cells in (CELLS, 2 * CELLS):
        for place in range(1, cells):
            scaled = abs(NormalDist().inv_cdf(place / cells)) * 1e9
            assert abs(scaled % 1.0 - 0.5) > 1e-5


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(range(len(SHAPES))),
    st.floats(0.01, 0.5),
    st.floats(0.01, 0.9),
)
def test_a_fit_has_the_mean_and_variance_asked_for(which: int, mean: float, part: float) -> None:
    variance = part * mean * (1 - mean)
    edges = fit_clipped(SHAPES[which], mean, variance)
    if edges is None:
        # Of flat and of one-sided shapes not all; those have the mixture.
        edges, share = fit_inside(two_sided(0), mean, variance)
        found, second = moments(edges)
        assert found == pytest.approx(mean, abs=1e-4)
        spread = (1 - share) * (second - found**2) + share * mean * (1 - mean)
        assert spread == pytest.approx(variance, rel=5e-3)
    else:
        found, second = moments(edges)
        assert found == pytest.approx(mean, abs=2e-4 * variance**0.5)
        assert second - found**2 == pytest.approx(variance, rel=2e-3)
    assert 0.0 <= edges.min() <= edges.max() <= 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 0.05, 0.4, 3.0, 1e3])
@pytest.mark.parametrize("shift", [-50.0, -0.2, 0.0, 0.3, 1.0, 1.4])
def test_sums_of_clipped_edges_are_those_of_the_edges(
    shape: Shape, shift: float, scale: float
) -> None:
    edges = np.clip(shift + scale * shape.edges, 0.0, 1.0)
    free = (edges > 0.0) & (edges < 1.0)
    found = _clipped_sums(shape, shift, scale)
    assert (found.mean, found.second) == pytest.approx(moments(edges), abs=1e-9)
    of_free = (free.sum(), shape.edges[free].sum(), edges[free].sum())
    assert (found.free, found.shape, found.edges) == pytest.approx(of_free, rel=1e-9, abs=1e-6)
    assert found.both == pytest.approx((shape.edges * edges)[free].sum(), rel=1e-9, abs=1e-6)


def test_the_normal_shape_fits_nearly_everything() -> None:
    grid = [(m, p) for m in np.linspace(0.01, 0.5, 15) for p in np.linspace(0.005, 0.97, 25)]
    missed = [1 for m, p in grid if fit_clipped(two_sided(1), m, p * m * (1 - m)) is None]
    assert len(missed) <= 0.02 * len(grid)


@given(st.floats(1e-6, 0.999999), st.floats(0.0, 1.0))
def test_the_mixture_has_every_mean_and_variance(mean: float, part: float) -> None:
    variance = part * mean * (1 - mean)
    edges, share = fit_inside(two_sided(0), mean, variance)
    found, second = moments(edges)
    assert 0.0 <= share <= 1.0
    assert found == pytest.approx(mean, rel=1e-5, abs=1e-7)
    spread = (1 - share) * (second - found**2) + share * mean * (1 - mean)
    assert spread == pytest.approx(variance, rel=1e-3, abs=1e-6 * mean)


def test_the_upper_half_of_the_normal_distribution_has_its_known_moments() -> None:
    mean, deviation = _upper_half(1)
    assert mean == pytest.approx((2 * np.pi) ** -0.5, rel=1e-3)
    assert deviation == pytest.approx((0.5 - 0.5 / np.pi) ** 0.5, rel=1e-3)
