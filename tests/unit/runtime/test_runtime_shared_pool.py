"""Shared memory that is used again: never while somebody reads it, and never more than it may be."""

import contextlib
import os

import numpy as np
import pytest

from ray_precheck.runtime.tensors.shared_arrays import SharedArrays
from ray_precheck.runtime.tensors.shared_pool import SharedPool

pytestmark = pytest.mark.unit

MIB = 1 << 20


def lent(pool: SharedPool, *sizes: int, fill: int = 7) -> SharedArrays:
    return pool.share([memoryview(bytes([fill]) * size) for size in sizes])


def memory(shared: SharedArrays) -> int:
    return os.fstat(shared.handle).st_ino


def returned(shared: SharedArrays) -> int:
    """Give memory back as whoever reads it does: under a descriptor of its own."""
    shared.again(shared.lengths).give_back()
    return memory(shared)


def test_what_was_given_back_is_used_again_with_other_arrays_in_it() -> None:
    pool = SharedPool()
    first = returned(lent(pool, 2 * MIB))
    for fill in (1, 2, 3):
        again = lent(pool, MIB, 1000, fill=fill)
        assert returned(again) == first
        assert [set(array.tobytes()) for array in again.open()] == [{fill}, {fill}]
        assert [array.nbytes for array in again.open()] == [MIB, 1000]
        assert all(array.ctypes.data % 64 == 0 for array in again.open())


def test_what_somebody_may_read_yet_is_left_alone() -> None:
    pool = SharedPool()
    first = lent(pool, 2 * MIB, fill=1)
    second = lent(pool, 2 * MIB, fill=2)
    assert memory(first) != memory(second)
    returned(first)
    third = lent(pool, 2 * MIB, fill=3)
    assert memory(third) == memory(first)
    # The third is in use now, as the first was.
    assert memory(lent(pool, 2 * MIB)) not in (memory(second), memory(third))
    assert set(second.open()[0].tobytes()) == {2}


def test_whoever_read_it_before_may_have_it_open_yet() -> None:
    pool = SharedPool()
    first = lent(pool, 4 * MIB, fill=1)
    (array,) = first.open()
    returned(first)
    lent(pool, 2 * MIB, fill=2)
    # To read beyond a file's end would kill the process (SIGBUS).
    assert np.count_nonzero(array) == 4 * MIB


@pytest.mark.parametrize(("before", "after"), [(MIB, 2 * MIB), (8 * MIB, MIB)])
def test_memory_of_another_size_is_not_used(before: int, after: int) -> None:
    pool = SharedPool()
    first = returned(lent(pool, before))
    assert memory(lent(pool, after)) != first


def test_the_smallest_that_fits_is_taken() -> None:
    pool = SharedPool()
    large, small = lent(pool, 3 * MIB), lent(pool, 2 * MIB)
    returned(large)
    returned(small)
    assert memory(lent(pool, 2 * MIB)) == memory(small)


def test_small_arrays_are_not_kept() -> None:
    pool = SharedPool()
    shared = lent(pool, 1000)
    returned(shared)
    assert memory(lent(pool, 1000)) != memory(shared)


def test_what_nobody_uses_makes_room() -> None:
    before = held()
    pool = SharedPool(most_bytes=8 * MIB)
    returned(lent(pool, 5 * MIB))
    second = returned(lent(pool, 7 * MIB))
    assert 7 * MIB < held() - before < 8 * MIB
    assert memory(lent(pool, 7 * MIB)) == second


def test_no_more_is_forgotten_than_has_to_be() -> None:
    pool = SharedPool(most_bytes=8 * MIB)
    pair = [lent(pool, 3 * MIB) for _ in range(2)]
    first, second = map(returned, pair)
    del pair
    returned(lent(pool, 4 * MIB))
    assert memory(lent(pool, 3 * MIB)) == second != first


def test_what_there_is_no_room_for_is_not_kept() -> None:
    before = held()
    pool = SharedPool(most_bytes=8 * MIB)
    first = lent(pool, 5 * MIB)
    second = returned(lent(pool, 5 * MIB))
    assert 5 * MIB < held() - before < 6 * MIB
    assert memory(lent(pool, 5 * MIB)) != second
    # Nothing is forgotten for the sake of what is too large anyway.
    kept = returned(first)
    returned(lent(pool, 9 * MIB))
    assert memory(lent(pool, 5 * MIB)) == kept


def held() -> int:
    """Return the bytes of shared memory that this process has, each counted once."""
    sizes = {}
    for each in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{each}"
        with contextlib.suppress(OSError):
            if "ray_precheck" in os.readlink(path):
                status = os.stat(path)
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
