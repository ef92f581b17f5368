"""What is sealed is opened again as it was, however it has travelled."""

import pickle
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

from ray_precheck.check.attempt import Failure, Measured
from ray_precheck.runtime.workers.messages import Sealed, seal
from ray_precheck.schema.values import HostTensor

pytestmark = pytest.mark.unit


def tensor(*values: float) -> HostTensor:
    return HostTensor("float32", np.array(values, np.float32))


MEASURED = Measured([tensor(1.0, np.nan), None], None, [tensor(3.0)], Failure("odd", True))


def describe(measured: Measured) -> tuple[Any, ...]:
    """Return what a `Measured` holds, to be compared."""
    leaves = [*(measured.outputs or ()), *(measured.gradients or ())]
    found = [
        (leaf.dtype, leaf.data.dtype, leaf.data.tobytes()) if isinstance(leaf, HostTensor) else leaf
        for leaf in leaves
    ]
    return (*found, measured.error, measured.gradient_error, measured.no_gradients)


def test_what_is_sealed_opens_to_the_same() -> None:
    assert describe(seal(MEASURED).open()) == describe(MEASURED)


def test_its_size_is_that_of_its_arrays_and_a_little_more() -> None:
    array = np.zeros(10**6, np.float64)
    sealed = seal([array, array[:1000].copy()])
    assert sum(buffer.nbytes for buffer in sealed.buffers) == 8 * (10**6 + 1000)
    assert sealed.nbytes == 8 * (10**6 + 1000) + len(sealed.data)
    assert len(sealed.data) < 1000


def test_arrays_are_not_copied() -> None:
    array = np.arange(10.0)
    sealed = seal(array)
    assert np.shares_memory(sealed.buffers[0], array)
    assert np.shares_memory(sealed.open(), array)


def test_what_has_no_array_has_no_buffer() -> None:
    assert seal({"a": 1}).buffers == ()
    assert seal({"a": 1}).open() == {"a": 1}


def test_rays_pickle_takes_it() -> None:
    sealed: Sealed = cloudpickle.loads(cloudpickle.dumps(seal(MEASURED)))
    assert describe(sealed.open()) == describe(MEASURED)


def test_so_does_a_pickle_whose_arrays_go_another_way() -> None:
    sealed = seal(MEASURED)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(sealed, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == len(sealed.buffers) == 2
    # Ray hands out memory that may only be read.
    views = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    again: Sealed = pickle.loads(data, buffers=views)
    assert describe(again.open()) == describe(MEASURED)
    assert again.nbytes == sealed.nbytes


class Unknown:
    """Stands for a class of a framework that only check processes load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("no framework here")


def test_who_hands_it_on_opens_nothing() -> None:
    sealed: Sealed = pickle.loads(pickle.dumps(seal(Unknown())))
    assert sealed.nbytes == len(sealed.data)
    with pytest.raises(ImportError, match="no framework here"):
        sealed.open()
