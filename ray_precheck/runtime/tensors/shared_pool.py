"""Shared memory that is used again: the kernel clears every page that a process gets for the first time.

Comes in: arrays as bytes. Goes out: `SharedArrays`, maybe in memory of others that were given back. Called
by the check process for tensors that it lends. To fill fresh memory takes 0.40 to 0.50 ms/MB, to fill
memory that was mapped before 0.10 to 0.12 (Linux 6.18, one core of an AMD EPYC).
"""

import mmap
from collections.abc import Sequence

import numpy as np

from ray_precheck.runtime.tensors.shared_arrays import SharedArrays, layout, share
from ray_precheck.schema.dtypes import Array

# Smaller arrays are not worth it; a process keeps no more than this beside the memory that its APIs
# need.
_LEAST_BYTES = 1 << 20
_MOST_BYTES = 1 << 29
# How many times as large as its arrays a memory that is used again may be.
_MOST_SPARE = 4


class SharedPool:
    """The memory of one process that it has shared, at most `most_bytes` of it, in use or not."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        # The oldest first.
        self._blocks: list[_Block] = []

    def share(self, views: Sequence[memoryview]) -> SharedArrays:
        """Copy arrays into memory that can be shared; it is used again once it is given back.

        Raises:
            OSError: there is no memory left to share, or no descriptor.
        """
        lengths = [view.nbytes for view in views]
        nbytes = layout(lengths)[1]
        if not _LEAST_BYTES <= nbytes <= self._most_bytes:
            return share(views)
        fitting = [block for block in self._blocks if block.fits(nbytes)]
        for block in sorted(fitting, key=lambda block: block.nbytes):
            if block.memory.take_again():
                return block.fill(lengths, views)
        shared = share(views)
        if self._make_room(nbytes):
            self._blocks.append(_Block(shared.again((nbytes,)), nbytes))
        return shared

    def _make_room(self, nbytes: int) -> bool:
        """Free unused blocks until memory of this size fits; return whether it fits."""
        left = sum(block.nbytes for block in self._blocks) + nbytes - self._most_bytes
        for block in list(self._blocks):
            if left > 0 and block.memory.take_again():
                self._blocks.remove(block)
                left -= block.nbytes
        return left <= 0


class _Block:
    """Memory of one size, that is mapped once it is used again."""

    def __init__(self, memory: SharedArrays, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self._mapped: Array | None = None

    def fits(self, nbytes: int) -> bool:
        return nbytes <= self.nbytes <= _MOST_SPARE * nbytes

    def fill(self, lengths: Sequence[int], views: Sequence[memoryview]) -> SharedArrays:
        if self._mapped is None:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._mapped = np.frombuffer(
                mmap.mmap(self.memory.handle, self.nbytes, flags=flags), np.uint8
            )
        shared = self.memory.again(lengths)
        for part, view in zip(shared.cut(self._mapped), views, strict=True):
            np.copyto(part, np.frombuffer(view, np.uint8))
        return shared
