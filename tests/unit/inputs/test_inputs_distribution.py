"""Tensors that have the recorded extremes, mean and second moment."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.inputs import distribution
from ray_precheck.inputs.distribution import recorded_body, true_share, value_range
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import Bound, TensorSpec

pytestmark = pytest.mark.unit

API = "Mint.add.0"
MANY = 20_000
RANDOM = np.random.Generator(np.random.Philox(key=5))
NORMAL = RANDOM.normal(size=MANY)
# What tensors of a training step look like.
SAMPLES = {
    "normal": NORMAL,
    "uniform": RANDOM.random(MANY),
    "laplace": RANDOM.laplace(size=MANY),
    "cubes": NORMAL**3,
    "squares": NORMAL**2,
    "relu": np.maximum(NORMAL, 0.0),
    "negative relu": -np.maximum(NORMAL, 0.0),
    "one outlier": np.append(NORMAL, 80.0),
    "far from 0": 100.0 + NORMAL,
    "lognormal": np.exp(1.5 * NORMAL),
    "mostly 0": np.where(RANDOM.random(MANY) < 0.01, NORMAL, 0.0),
    "one hot": np.eye(200).reshape(-1),
    "a mask of 0 and 1": (RANDOM.random(MANY) < 0.3) * 1.0,
    "a mask of 0 and -1e4": np.where(RANDOM.random(MANY) < 0.3, -1e4, 0.0),
    "both ends": RANDOM.beta(0.3, 0.3, size=MANY),
    "tiny": 1e-30 * NORMAL,
    "huge": 1e30 * NORMAL,
}


def spec_of(values: Array, dtype: str = "float32", precision: str = "float64") -> TensorSpec:
    """Return what a dump would say of a tensor, its mean and norm rounded to `precision`."""
    wide = round_to_dtype(np.asarray(values, np.float64), dtype).astype(np.float64)
    mean, norm = round_to_dtype(np.array([wide.mean(), np.sqrt((wide * wide).sum())]), precision)
    low, high = float(wide.min()), float(wide.max())
    return TensorSpec(dtype, wide.shape, low, high, mean=float(mean), norm=float(norm))


def drawn(spec: TensorSpec, *, path: str = "input_args.0", distribution: str = "recorded") -> Array:
    return GeneratedTensors(0, API, distribution).tensor(spec, path).data


def assert_moments(data: Array, spec: TensorSpec, *, errors: float = 5.0) -> None:
    """Hold mean and second moment to within some standard errors of the recorded ones.

    The body's own errors count: those of n independent numbers of the sample's spread.
    """
    wide = data.astype(np.float64)
    assert spec.mean is not None
    assert spec.norm is not None
    scale = max(abs(wide.max()), abs(wide.min()))
    rounding = 2.0 ** -DTYPES[spec.dtype].mantissa_bits if DTYPES[spec.dtype].kind == "float" else 0
    allowed = errors * wide.std() / math.sqrt(wide.size) + (rounding + 1e-6) * scale / 8
    assert abs(wide.mean() - spec.mean) <= allowed
    squares = wide * wide
    allowed = errors * squares.std() / math.sqrt(wide.size) + 2e-3 * squares.mean()
    assert abs(squares.mean() - spec.norm**2 / wide.size) <= allowed


@pytest.mark.parametrize("name", SAMPLES)
def test_mean_second_moment_and_extremes_are_the_recorded_ones(name: str) -> None:
    spec = spec_of(SAMPLES[name])
    data = drawn(spec)
    assert (data.min(), data.max()) == (spec.low, spec.high)
    assert_moments(data, spec)


@pytest.mark.parametrize("name", ["normal", "relu", "one outlier", "lognormal"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_half_types_have_their_moments_too(name: str, dtype: str) -> None:
    spec = spec_of(SAMPLES[name], dtype)
    data = drawn(spec)
    assert (data.min(), data.max()) == (spec.low, spec.high)
    np.testing.assert_array_equal(data, round_to_dtype(data.astype(np.float64), dtype))
    assert_moments(data, spec)


def test_extremes_that_a_dtype_cannot_hold_are_rounded_to_it() -> None:
    data = drawn(TensorSpec("bfloat16", (50,), 0.1, 0.7, mean=0.3, norm=2.3))
    np.testing.assert_array_equal(data, round_to_dtype(data.astype(np.float64), "bfloat16"))


def test_the_uniform_distribution_misses_them_by_far() -> None:
    spec = spec_of(SAMPLES["one outlier"])
    data = drawn(spec, distribution="uniform").astype(np.float64)
    with pytest.raises(AssertionError):
        assert_moments(data, spec)
    assert np.sqrt((data * data).mean()) > 20 * NORMAL.std()


def test_an_outlier_stays_alone() -> None:
    data = drawn(spec_of(SAMPLES["one outlier"]))
    assert (np.abs(data) > 40).sum() == 1


def test_extremes_stand_at_random_places() -> None:
    spec = spec_of(NORMAL)
    places = {int(drawn(spec, path=str(i)).argmax()) for i in range(8)}
    assert len(places) == 8


def test_outputs_of_relu_have_their_zeros() -> None:
    assert (drawn(spec_of(SAMPLES["relu"])) == 0).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", ["a mask of 0 and 1", "a mask of 0 and -1e4"])
def test_a_mask_of_two_values_has_hardly_any_others(name: str) -> None:
    spec = spec_of(SAMPLES[name])
    data = drawn(spec)
    assert np.isin(data, [spec.low, spec.high]).mean() > 0.99
    assert (data == 0).mean() == pytest.approx((SAMPLES[name] == 0).mean(), abs=0.02)


@pytest.mark.parametrize(
    ("name", "kurtosis"), [("uniform", (1.6, 2.0)), ("normal", (2.7, 3.3)), ("cubes", (25.0, 60.0))]
)
def test_the_tails_are_like_those_of_the_recorded_extremes(
    name: str, kurtosis: tuple[float, float]
) -> None:
    data = drawn(spec_of(SAMPLES[name])).astype(np.float64)
    centred = data - data.mean()
    assert kurtosis[0] < (centred**4).mean() / (centred**2).mean() ** 2 < kurtosis[1]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_small_tensors_have_both_extremes(size: int) -> None:
    for path in map(str, range(10)):
        data = drawn(spec_of(NORMAL[:size]), path=path)
        assert data.min() == np.float32(NORMAL[:size].min())
        assert data.max() == np.float32(NORMAL[:size].max())


@pytest.mark.parametrize("mean", [-1.9, 0.5, 2.9])
def test_two_numbers_are_the_extremes_whatever_the_mean(mean: float) -> None:
    data = drawn(TensorSpec("float32", (2,), -2.0, 3.0, mean=mean))
    assert sorted(data.tolist()) == [-2.0, 3.0]


def test_three_numbers_are_known_from_their_statistics() -> None:
    data = np.sort(drawn(spec_of(np.array([-1.0, 0.25, 3.0]))))
    np.testing.assert_allclose(data, [-1.0, 0.25, 3.0], atol=0.05)


def test_a_constant_tensor_stays_constant() -> None:
    assert (drawn(spec_of(np.full(10, 0.3))) == np.float32(0.3)).all()


def test_one_element_is_its_recorded_value() -> None:
    assert drawn(TensorSpec("float32", (), -2.5, -2.5, mean=-2.5, norm=-2.5)).tolist() == -2.5


def body_is_told(low: Bound, high: Bound, mean: Bound, norm: Bound, dtype: str = "float32") -> bool:
    spec = TensorSpec(dtype, (1000,), low, high, mean=mean, norm=norm)
    return recorded_body(spec, value_range(spec)) is not None


@pytest.mark.parametrize("mean", [None, math.nan, math.inf, 3.0, -5.0, 10**400])
def test_without_a_mean_within_the_extremes_the_range_alone_counts(mean: Bound) -> None:
    assert not body_is_told(-1.0, 1.0, mean, 10.0)
    spec = TensorSpec("float32", (1000,), -1.0, 1.0, mean=mean, norm=10.0)
    np.testing.assert_array_equal(drawn(spec), drawn(spec, distribution="uniform"))


@pytest.mark.parametrize("norm", [None, math.nan, math.inf, 0.0, -3.0, 1e9, 1.0])
def test_with_a_norm_that_cannot_be_the_mean_still_counts(norm: Bound) -> None:
    spec = TensorSpec("float32", (MANY,), -1.0, 1.0, mean=0.25, norm=norm)
    data = drawn(spec)
    assert data.mean() == pytest.approx(0.25, abs=0.02)
    # A third of the largest variance that the mean allows.
    assert data.var() == pytest.approx((1 - 0.25**2) / 3, rel=0.05)


def test_a_mean_in_the_middle_without_a_norm_gives_uniform_numbers() -> None:
    data = np.sort(drawn(TensorSpec("float64", (MANY,), 0.0, 1.0, mean=0.5)))
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed by 99.9 % of uniform samples.
    assert np.abs(data - (np.arange(MANY) + 0.5) / MANY).max() < 1.95 / math.sqrt(MANY)


def test_a_norm_that_lost_the_variance_in_rounding_gives_no_constant_body() -> None:
    # 100 +- 1 with a norm rounded to bfloat16: the difference of two numbers near 1e4.
    spec = spec_of(SAMPLES["far from 0"], "bfloat16", "bfloat16")
    data = drawn(spec).astype(np.float64)
    assert len(np.unique(data)) > 5
    assert data.mean() == pytest.approx(100.0, abs=1.0)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_a_mean_at_a_bound_puts_the_body_there(mean: float) -> None:
    # Rounded from a mean that is not quite there: one element of 1e6 is at the other bound.
    spec = TensorSpec("float32", (1 << 20,), 0.0, 1.0, mean=mean, norm=1.0 if mean == 0 else 1024.0)
    data = drawn(spec)
    assert (data == mean).mean() > 0.99
    assert (data == 1.0 - mean).sum() == 1


@pytest.mark.parametrize("low", [-math.inf, -1.0])
def test_infinite_extremes_are_drawn_as_without_a_mean(low: float) -> None:
    spec = TensorSpec("float32", (100,), low, math.inf, mean=math.inf, norm=math.inf)
    np.testing.assert_array_equal(drawn(spec), drawn(spec, distribution="uniform"))


def test_whole_numbers_have_their_mean_and_both_extremes() -> None:
    counts = RANDOM.geometric(0.05, MANY)
    spec = spec_of(counts, "int32")
    data = drawn(spec)
    assert (data.min(), data.max()) == (counts.min(), counts.max())
    assert_moments(data, spec)


def test_few_whole_numbers_stay_uniform() -> None:
    values, counts = np.unique(drawn(spec_of(np.arange(MANY) % 5, "int64")), return_counts=True)
    assert values.tolist() == [0, 1, 2, 3, 4]
    assert counts.min() > 0.9 * MANY / 5


def test_few_whole_numbers_with_a_mean_alone_are_uniform() -> None:
    data = drawn(TensorSpec("int64", (MANY,), 0, 4, mean=2.0))
    counts = np.unique(data, return_counts=True)[1]
    assert counts.min() > 0.9 * MANY / 5


@pytest.mark.parametrize(("dtype", "low", "high"), [("int32", 0, 1), ("bool", False, True)])
def test_of_two_values_the_mean_is_the_share_of_the_larger(
    dtype: str, low: Bound, high: Bound
) -> None:
    data = drawn(TensorSpec(dtype, (MANY,), low, high, mean=0.1))
    assert data.mean() == pytest.approx(0.1, abs=0.01)


def test_both_booleans_occur_however_rare_one_was() -> None:
    for path in map(str, range(10)):
        data = drawn(TensorSpec("bool", (8,), False, True, mean=1 / 8), path=path)
        assert 0 < data.sum() < 8


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e-6])
def test_a_mean_that_contradicts_two_values_does_not_count(mean: float) -> None:
    spec = TensorSpec("bool", (100,), False, True, mean=mean)
    np.testing.assert_array_equal(drawn(spec), drawn(spec, distribution="uniform"))


def test_whole_numbers_beyond_exact_floats_are_drawn_as_without_a_mean() -> None:
    spec = TensorSpec("int64", (100,), 0, 2**62, mean=2.0**61)
    np.testing.assert_array_equal(drawn(spec), drawn(spec, distribution="uniform"))


def test_whole_numbers_are_exact_up_to_2_to_the_52() -> None:
    for low, high, is_told in ((0, 2**52, True), (-(2**52), 0, True), (0, 2**52 + 1, False)):
        assert body_is_told(low, high, (low + high) / 2, None, "int64") is is_told


# Half an element of 4 is an eighth.
@pytest.mark.parametrize(
    ("mean", "share"), [(0.124, None), (0.125, 0.125), (0.875, 0.875), (0.876, None)]
)
def test_a_share_of_half_an_element_may_be_one_that_was_rounded(
    mean: float, share: float | None
) -> None:
    spec = TensorSpec("int64", (4,), 0, 1, mean=mean)
    assert true_share(spec, value_range(spec)) == share


def test_complex_statistics_are_those_of_magnitudes() -> None:
    magnitudes = np.abs(NORMAL) + 0.1
    spec = spec_of(magnitudes)
    data = drawn(
        TensorSpec("complex64", spec.shape, spec.low, spec.high, mean=spec.mean, norm=spec.norm)
    )
    sizes = np.abs(data)
    assert sizes.min() >= float(spec.low or 0) * (1 - 1e-6)
    assert sizes.max() == pytest.approx(spec.high, rel=1e-6)
    assert_moments(sizes, spec)
    for sign in (data.real > 0, data.imag > 0, np.abs(data.real) > np.abs(data.imag)):
        assert sign.mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
@pytest.mark.parametrize("name", ["normal", "one hot", "a mask of 0 and 1"])
def test_the_size_of_the_chunks_changes_no_number_of_a_body(
    monkeypatch: pytest.MonkeyPatch, dtype: str, name: str
) -> None:
    values = np.abs(SAMPLES[name][:500]) * (10 if dtype == "int32" else 1)
    spec = spec_of(np.rint(values) if dtype == "int32" else values)
    spec = TensorSpec(dtype, spec.shape, spec.low, spec.high, mean=spec.mean, norm=spec.norm)
    whole = drawn(spec)
    monkeypatch.setattr(distribution, "_CHUNK_ELEMENTS", 7)
    np.testing.assert_array_equal(drawn(spec), whole)


def test_the_numbers_of_a_body_are_these_on_every_host() -> None:
    # Written down once: another stream would change the rows of a run that is gone on with.
    found = [
        drawn(TensorSpec("float64", (5,), *ends, mean=mean, norm=norm)).tolist()
        for ends, mean, norm in (((-4.0, 4.0), 0.1, 6.0), ((0.0, 9.0), 3.0, 9.8))
    ]
    assert found == NUMBERS


NUMBERS = [
    [4.0, 1.863573394679944, 1.2558649140778957, -4.0, -1.083803109467483],
    [9.0, 0.5050164321141036, 1.0404107641487983, 0.0, 3.101670461245726],
]


@settings(deadline=None, max_examples=200)
@given(
    values=st.lists(
        st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, -1e4]), min_size=3, max_size=40
    ),
    times=st.sampled_from([1, 50]),
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "float16", "int32"]),
)
def test_whatever_was_recorded_keeps_to_its_extremes_and_both_occur(
    values: list[float], times: int, dtype: str
) -> None:
    wide = np.repeat(np.rint(values) if dtype == "int32" else values, times)
    wide = (
        np.clip(wide, -DTYPES[dtype].largest, DTYPES[dtype].largest) if dtype != "int32" else wide
    )
    spec = spec_of(wide, dtype, "float32")
    data = drawn(spec).astype(np.float64)
    assert np.isfinite(data).all()
    assert (data.min(), data.max()) == (spec.low, spec.high)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [("float32", -149), ("float32", -140), ("bfloat16", -133), ("float16", -24), ("float64", -149)],
)
def test_extremes_among_the_subnormals_occur_though_their_mean_is_lost(
    dtype: str, exponent: int, sign: float
) -> None:
    # The mean of 200 numbers, one of which is the smallest that there is, is recorded as 0.
    for values in ([0.0] * 199 + [1.0], [0.0, 1.0, 1.0, 3.0], [0.0, 0.0, 105.0]):
        spec = spec_of(sign * np.ldexp(values, exponent), dtype, "float32")
        data = drawn(spec).astype(np.float64)
        assert (data.min(), data.max()) == (spec.low, spec.high), spec


@settings(deadline=None, max_examples=100)
@given(
    st.floats(0.001, 0.999),
    st.floats(0.001, 0.999),
    st.floats(-100.0, 100.0),
    st.floats(1e-3, 1e3),
)
def test_every_possible_mean_and_variance_is_met(
    mean: float, part: float, start: float, width: float
) -> None:
    """`part` of the largest variance that a mean between two ends can have."""
    n = 50_000
    variance = part * mean * (1 - mean)
    total = (n - 2) * mean + 1  # the body's, and the two ends 0 and 1
    squares = (n - 2) * (variance + mean * mean) + 1
    norm2 = n * start * start + 2 * start * width * total + width * width * squares
    spec = TensorSpec(
        "float64", (n,), start, start + width, mean=start + width * total / n, norm=norm2**0.5
    )
    data = (drawn(spec) - start) / width
    spread = math.sqrt(variance)
    # Where extremes and mean are close beside the offset, the norm tells less of the variance.
    lost = 2.0**-17 * (abs(start) / width + 1.0) ** 2
    assert abs(data.mean() - mean) < 6 * spread / math.sqrt(n) + 1e-3 * spread + lost
    fourth = ((data - data.mean()) ** 4).mean()
    error = math.sqrt(fourth / n)
    assert abs(data.var() - variance) < 6 * error + 3e-3 * variance + 2 * lost + 2.0 / n


def test_a_large_tensor_is_drawn_in_chunks() -> None:
    size = 1 << 22
    spec = TensorSpec("bfloat16", (size,), -4.0, 4.0, mean=0.1, norm=2000.0)
    drawn(TensorSpec("bfloat16", (4,), -4.0, 4.0, mean=0.1, norm=6.0))  # the tables
    tracemalloc.start()
    try:
        drawn(spec)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The tensor, and a few temporary arrays of a chunk.
    assert peak < 4 * size + 12 * 8 * distribution._CHUNK_ELEMENTS
