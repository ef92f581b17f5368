"""The gradients that come in at the outputs."""

import numpy as np
import pytest

from ray_precheck.errors import NotCheckable
from ray_precheck.inputs.generate import GeneratedTensors, assign_cotangents
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, HostTensor, TensorSpec, ValueSpec

pytestmark = pytest.mark.unit


class Counting:
    """A source whose tensors hold 0, 1, 2, ... and which notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        self.asked.append((path, spec.shape))
        data = np.arange(spec.size).reshape(spec.shape).astype(DTYPES[spec.dtype].carrier)
        return HostTensor(spec.dtype, data)


def record(*grads: ValueSpec) -> ApiRecord:
    return ApiRecord(ApiName("Torch", "topk", 0), (), (), (), grads_in=grads, grads_out=())


def grad(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(dtype, shape, -1.0, 1.0)


def output(*shape: int, dtype: str = "float32") -> HostTensor:
    return HostTensor(dtype, np.zeros(shape, DTYPES[dtype].carrier))


def assigned(
    grads: list[ValueSpec],
    outputs: list[HostTensor | None],
    *,
    may_reshape: bool = False,
) -> list[tuple[int, ...] | None]:
    """Return the shapes of the assigned gradients, with the dtype of each output."""
    found = assign_cotangents(record(*grads), outputs, Counting(), may_reshape=may_reshape)
    for cotangent, target in zip(found, outputs, strict=True):
        assert cotangent is None or (target is not None and cotangent.dtype == target.dtype)
    return [None if cotangent is None else cotangent.shape for cotangent in found]


def test_gradients_go_to_the_outputs_of_their_position() -> None:
    assert assigned([grad(2), grad(3)], [output(2), output(3)]) == [(2,), (3,)]


def test_an_index_output_gets_no_gradient() -> None:
    outputs: list[HostTensor | None] = [output(2), output(2, dtype="int64")]
    assert assigned([grad(2), grad(2)], outputs) == [(2,), None]
    assert assigned([grad(2), Constant(None)], outputs) == [(2,), None]


def test_a_single_gradient_goes_to_the_first_float_output_of_its_size() -> None:
    outputs = [output(3, dtype="int64"), None, output(2), output(3), output(3)]
    assert assigned([grad(3)], outputs) == [None, None, None, (3,), None]


def test_more_gradients_than_outputs_go_each_to_one_that_is_free() -> None:
    grads: list[ValueSpec] = [Constant(None), grad(4), grad(4)]
    assert assigned(grads, [output(4), output(4)]) == [(4,), (4,)]
    source = Counting()
    assign_cotangents(record(*grads), [output(4), output(4)], source, may_reshape=False)
    assert source.asked == [("backward input.1", (4,)), ("backward input.2", (4,))]


def test_a_gradient_takes_the_shape_of_an_output_of_its_size() -> None:
    found = assign_cotangents(record(grad(6)), [output(2, 3)], Counting(), may_reshape=False)
    assert found[0] is not None
    assert found[0].data.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_scalar_output_takes_a_gradient_of_one_element() -> None:
    assert assigned([grad(1)], [output()]) == [()]


def test_a_gradient_of_another_dtype_is_rounded_to_that_of_the_output() -> None:
    class Fine:
        def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
            return HostTensor(spec.dtype, np.array([1.0 + 2.0**-8 + 2.0**-20], np.float32))

    found = assign_cotangents(
        record(grad(1)), [output(1, dtype="bfloat16")], Fine(), may_reshape=False
    )
    assert found[0] is not None
    assert found[0].dtype == "bfloat16"
    assert found[0].data.dtype == np.float32
    assert found[0].data.tolist() == [1.0 + 2.0**-7]


def test_generated_gradients_take_the_shape_of_an_output_of_another_size() -> None:
    # Such as the output of masked_select, whose size depends on the values.
    source = Counting()
    found = assign_cotangents(record(grad(7)), [output(2, 2)], source, may_reshape=True)
    assert source.asked == [("backward input.0", (2, 2))]
    assert found[0] is not None
    assert found[0].shape == (2, 2)


def test_a_generated_gradient_that_fits_none_goes_to_the_first_output_that_is_left() -> None:
    outputs = [output(4), output(2), output(3)]
    assert assigned([grad(4), grad(7)], outputs, may_reshape=True) == [(4,), (2,), None]


def test_captured_gradients_are_never_reshaped_to_another_size() -> None:
    with pytest.raises(NotCheckable, match=r"no output fits .* of shapes \[\[7\]\]"):
        assigned([grad(7)], [output(2, 2)])


@pytest.mark.parametrize("may_reshape", [True, False])
def test_without_an_output_that_takes_a_gradient_the_call_is_not_checkable(
    may_reshape: bool,
) -> None:
    for outputs in ([], [None], [output(2, dtype="int32")]):
        with pytest.raises(NotCheckable, match="no output fits"):
            assigned([grad(2)], outputs, may_reshape=may_reshape)


@pytest.mark.parametrize("grads", [[], [Constant(None)]])
def test_without_a_gradient_the_call_is_not_checkable(grads: list[ValueSpec]) -> None:
    with pytest.raises(NotCheckable, match=r"of shapes \[\]"):
        assigned(grads, [output(2)])


def test_an_empty_output_takes_an_empty_gradient() -> None:
    assert assigned([grad(0, 3)], [output(0, 3)]) == [(0, 3)]


def test_generated_gradients_of_two_outputs_differ() -> None:
    source = GeneratedTensors(0, "Torch.topk.0")
    found = assign_cotangents(
        record(grad(50), grad(50)), [output(50), output(50)], source, may_reshape=True
    )
    assert found[0] is not None
    assert found[1] is not None
    assert not np.isin(found[0].data, found[1].data).all()
