"""What one process has drawn, another takes: the same tensors and notes, and nothing drawn twice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import HostTensor, TensorSpec

pytestmark = pytest.mark.unit

PATH = "input_args.0"
# Without a range a note says which one was taken.
SPEC = TensorSpec("float32", (3,))
RECORD = ApiRecord(ApiName("Mint", "add", 0), (SPEC,), (), ())


def source(*, keeps: bool = False) -> GeneratedTensors:
    return GeneratedTensors(0, "Mint.add.0", keeps=keeps)


def taken(spec: TensorSpec = SPEC) -> tuple[HostTensor, HostTensor, GeneratedTensors]:
    """Return what is drawn once, what another source gives of it for `spec`, and that source."""
    first, second = source(keeps=True), source()
    tensor = first.tensor(SPEC, PATH)
    second.take(first.drawn, first.notes)
    return tensor, second.tensor(spec, PATH), second


def test_what_is_taken_is_not_drawn() -> None:
    tensor, again, _ = taken()
    assert again is tensor


def test_the_notes_of_drawing_come_along_once() -> None:
    first, second = source(keeps=True), source()
    first.tensor(SPEC, PATH)
    assert first.notes
    second.take(first.drawn, first.notes)
    second.tensor(SPEC, PATH)
    assert second.notes == first.notes


@pytest.mark.parametrize("other", [{"shape": (4,)}, {"dtype": "float64"}])
def test_of_another_shape_or_dtype_it_is_drawn_as_if_nothing_had_been_taken(
    other: dict[str, Any],
) -> None:
    spec = replace(SPEC, **other)
    _, again, _ = taken(spec)
    expected = source().tensor(spec, PATH)
    assert again.dtype == expected.dtype
    assert np.array_equal(again.data, expected.data)


def test_what_is_not_among_it_is_drawn() -> None:
    _, _, second = taken()
    expected = source().tensor(SPEC, "input_args.1")
    assert np.array_equal(second.tensor(SPEC, "input_args.1").data, expected.data)


def test_nothing_is_kept_where_nobody_asks_for_it() -> None:
    made = source()
    made.tensor(SPEC, PATH)
    assert made.drawn == {}


def test_safer_inputs_are_kept_apart_from_the_first_ones() -> None:
    first = source(keeps=True)
    first.tensor(SPEC, PATH)
    safer = first.safer(RECORD, "odd")
    tensor = safer.tensor(SPEC, PATH)
    assert safer.drawn[PATH] is tensor
    assert not np.array_equal(first.drawn[PATH].data, tensor.data)
