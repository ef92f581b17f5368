"""Safer inputs, and the option that chooses how inputs are drawn."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.cli import build_parser, run_config
from ray_precheck.errors import UsageError
from ray_precheck.inputs import DISTRIBUTIONS
from ray_precheck.inputs.generate import (
    GeneratedTensors,
    build_call,
    generated_tensors,
    smallest_extent,
)
from ray_precheck.replay.config import RunConfig
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, HostTensor, TensorSpec, ValueSpec

pytestmark = pytest.mark.unit


def record(api: str, *args: ValueSpec) -> ApiRecord:
    return ApiRecord(ApiName("Torch", api, 0), args, (), ())


def safer(call: ApiRecord) -> GeneratedTensors:
    return generated_tensors(0, call, "recorded").safer(call, "why")


def test_safe_numbers_are_small_and_positive_whatever_was_recorded() -> None:
    call = record(
        "new",
        TensorSpec("float32", (3, 50), -1e30, 1e30, mean=5.0, norm=9.0),
        TensorSpec("int32", (40,), -900, 900),
        TensorSpec("bool", (40,), True, True),
        TensorSpec("complex64", (40,), -5.0, 5.0),
    )
    floats, whole, flags, pairs = (arg.data for arg in build_call(call, safer(call)).args)
    assert 0.5 <= floats.min() < floats.max() <= 1.5
    assert set(whole.tolist()) == {0, 1, 2}
    assert flags.all()
    assert 0.5 <= pairs.real.min() <= pairs.imag.max() <= 1.5


def test_safe_square_matrices_are_positive_definite() -> None:
    call = record("new", TensorSpec("float32", (6, 6), 0.0, 0.0))
    matrix = build_call(call, safer(call)).args[0].data.astype(np.float64)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > 0.1


def test_a_role_counts_for_safe_numbers_too() -> None:
    call = record(
        "gather",
        TensorSpec("float32", (9, 30), -1.0, 1.0),
        Constant(1),
        TensorSpec("int64", (9, 4), 0, 29),
    )
    index = build_call(call, safer(call)).args[2].data
    assert 0 <= index.min() <= index.max() < 4


def test_incoming_gradients_stay_as_they_were_recorded() -> None:
    call = record("new", TensorSpec("float32", (3,), 0.0, 1.0))
    spec = TensorSpec("float32", (50,), 7.0, 8.0)
    np.testing.assert_array_equal(
        safer(call).tensor(spec, "backward input.0").data,
        GeneratedTensors(0, "Torch.new.0").tensor(spec, "backward input.0").data,
    )


def test_there_is_one_second_try_and_none_of_the_uniform_distribution() -> None:
    call = record("new", TensorSpec("float32", (3,), 0.0, 1.0))
    assert generated_tensors(0, call, "recorded").may_be_safer
    assert not safer(call).may_be_safer
    assert not generated_tensors(0, call, "uniform").may_be_safer


def test_the_message_has_the_ranges_and_what_the_device_raised() -> None:
    call = record("new", TensorSpec("float32", (3, 8), 0.0, 1.0))
    (note,) = safer(call).notes
    assert "floats from 0.5 to 1.5, whole numbers from 0 to 2" in note
    assert note.endswith("device: why")


@pytest.mark.parametrize(("shapes", "extent"), [([(3, 8), (0, 5)], 3), ([()], 1), ([], 1)])
def test_the_smallest_extent_is_that_of_all_tensors(
    shapes: list[tuple[int, ...]], extent: int
) -> None:
    assert (
        smallest_extent(record("new", *(TensorSpec("int8", shape) for shape in shapes))) == extent
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_the_uniform_distribution_draws_what_was_drawn_before_there_was_another(
    dtype: str,
) -> None:
    """Worked out here again: low (1 - u) + high u, or whole numbers of the closed range."""
    spec = TensorSpec(dtype, (7, 3), 0 if dtype == "bool" else -4, 1, mean=0.25, norm=5.0)
    text = b"3\0Torch.gather.0\0input_args.2"
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    generator = np.random.Generator(np.random.Philox(key=key))
    if dtype.startswith("float"):
        share = generator.random(21).reshape(7, 3)
        expected = (-4.0 * (1.0 - share) + 1.0 * share).astype(dtype)
    elif dtype == "bool":
        expected = generator.integers(0, 1, (7, 3), endpoint=True).astype(bool)
    else:
        expected = generator.integers(-4, 1, (7, 3), dtype=np.int32, endpoint=True)
    call = record("gather", TensorSpec("float32", (2, 2)), Constant(0), spec)
    found = build_call(call, generated_tensors(3, call, "uniform")).args[2]
    assert isinstance(found, HostTensor)
    np.testing.assert_array_equal(found.data, expected)
    recorded = build_call(call, generated_tensors(3, call, "recorded")).args[2]
    assert not np.array_equal(recorded.data, expected)


def config(*options: str) -> RunConfig:
    given = ["run_ut", "-api_info", "dump.json", *options]
    return run_config(build_parser().parse_args(given))


def test_the_recorded_distribution_is_the_default_and_uniform_an_option() -> None:
    assert config().distribution == RunConfig(Path("dump.json")).distribution == "recorded"
    assert config("--distribution", "uniform").distribution == "uniform"


def test_another_distribution_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--distribution 'normal' .* recorded, uniform"):
        config("--distribution", "normal").validate()


def test_a_run_with_one_distribution_cannot_go_on_with_the_other() -> None:
    prints = [config("--distribution", name).fingerprint("d", "f", "cpu") for name in DISTRIBUTIONS]
    assert prints[0] != prints[1]
