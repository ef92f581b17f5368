"""Arrays in shared memory: the same bits, where NumPy reads them fast, and nothing left open."""

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.runtime.tensors.shared_arrays import SharedArrays, share

pytestmark = pytest.mark.unit


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_arrays_come_out_as_they_went_in_and_aligned(contents: list[bytes]) -> None:
    shared = share([memoryview(content) for content in contents])
    arrays = shared.open()
    assert [array.tobytes() for array in arrays] == contents
    assert shared.nbytes == sum(map(len, contents))
    assert all(array.ctypes.data % 64 == 0 for array in arrays if array.size)


def test_all_who_open_it_have_the_same_memory() -> None:
    shared = share([memoryview(b"abc")])
    (first,), (second,) = shared.open(), shared.open()
    first[0] = ord("x")
    assert second.tobytes() == b"xbc"


def test_arrays_stay_when_the_descriptor_is_closed() -> None:
    (array,) = share([memoryview(b"abc")]).open()
    assert array.tobytes() == b"abc"


def test_the_descriptor_is_closed_with_its_owner() -> None:
    before = open_descriptors()
    shared = share([memoryview(b"abc")])
    assert len(open_descriptors() - before) == 1
    arrays = shared.open()
    del shared, arrays
    assert open_descriptors() == before


def test_so_it_is_where_the_memory_cannot_be_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = open_descriptors()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        share([memoryview(b"abc")])
    assert open_descriptors() == before


def test_without_memfd_a_file_without_a_name_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    (array,) = share([memoryview(b"abc")]).open()
    assert array.tobytes() == b"abc"


def test_no_pickle_takes_it_where_its_number_means_nothing() -> None:
    shared: SharedArrays = share([memoryview(b"abc")])
    with pytest.raises(TypeError, match="pipes"):
        pickle.dumps(shared)
