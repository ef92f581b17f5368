"""Two runs of a call are compared bit for bit, forward and backward."""

from typing import Any

import numpy as np
import pytest

from ray_precheck.check.attempt import Failure, Measured
from ray_precheck.commands.naive.contrast import first_unlike
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit
NAN = float("nan")


def host(values: Any, dtype: str = "float32") -> HostTensor:
    return HostTensor(dtype, np.asarray(values, dtype))


def outputs(*leaves: Any, gradients: list[Any] | None = None) -> Measured:
    return Measured(list(leaves), gradients=gradients)


def test_equal_runs_have_no_place() -> None:
    one = outputs(host([1.0, NAN]), 3, "text", [1, 2], gradients=[host([[0.5]]), None])
    other = outputs(host([1.0, NAN]), 3, "text", (1, 2), gradients=[host([[0.5]]), None])
    assert first_unlike(one, other) == ""


def test_the_first_element_that_differs_by_a_bit_is_named() -> None:
    one, other = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    other[1, 2] = np.nextafter(np.float32(0), np.float32(1))
    assert first_unlike(outputs(1, host(one)), outputs(1, host(other))) == "forward.output.1 [1, 2]"


def test_the_sign_of_zero_counts_and_the_bits_of_nan_do_not() -> None:
    assert first_unlike(outputs(host([0.0])), outputs(host([-0.0]))) == "forward.output.0 [0]"
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert first_unlike(outputs(host([NAN])), outputs(HostTensor("float32", payload))) == ""


def test_gradients_are_compared_after_the_outputs() -> None:
    one, other = (outputs(host([1.0]), gradients=[host([2.0, value])]) for value in (3.0, 4.0))
    assert first_unlike(one, other) == "backward.output.0 [1]"


def test_another_shape_dtype_or_value_is_named_as_a_whole() -> None:
    assert first_unlike(outputs(host([1.0])), outputs(host([[1.0]]))) == "forward.output.0"
    assert first_unlike(outputs(host([1], "int32")), outputs(host([1], "int64"))) != ""
    assert first_unlike(outputs(1), outputs(2)) == "forward.output.0"


def test_an_output_or_an_error_of_one_run_alone_is_a_difference() -> None:
    one = outputs(host([1.0]))
    assert first_unlike(one, outputs()) == "forward.output.0, which one of them alone gave"
    failed = Measured([host([1.0])], gradient_error=Failure("no"))
    assert first_unlike(one, failed) == "an error, which one of them alone raised"
    assert first_unlike(failed, failed) == ""


def test_nothing_and_empty_tensors_are_equal() -> None:
    assert first_unlike(outputs(host([])), outputs(host([]))) == ""
    assert first_unlike(outputs(host(True, "bool")), outputs(host(True, "bool"))) == ""
    assert first_unlike(outputs(host(2.0)), outputs(host(3.0))) == "forward.output.0 []"
