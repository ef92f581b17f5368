"""A disk for the histories on which a writer dies, the power fails and the space runs out.

Comes in: the calls of `os` by the store's modules. Goes out: the same calls on real files, until a
fuse burns down: then a write stops in its middle. The calls of fsync tell what a power loss may leave.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_precheck.store import journal, tables

_MODULES: tuple[Any, ...] = (journal, tables)


class Died(BaseException):
    """The process that wrote was killed; none of its handlers may run, so this is no Exception."""


class Disk:
    """Stands in for `os` in the store. A byte that is written and an fsync each burn one of `fuse`."""

    def __init__(self) -> None:
        self.fuse: int | None = None
        self.is_full = False
        # Chunks in the order in which they were written, for the check of every prefix.
        self.log: list[tuple[str, bytes]] = []
        self._synced: dict[str, int] = {}
        self._names: dict[int, str] = {}
        # As an attribute it is found without a call of __getattr__.
        self.fstat, self.path, self.ftruncate = os.fstat, os.path, os.ftruncate

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @contextmanager
    def in_place_of_os(self) -> Iterator[None]:
        """Stand in for `os` in the store's modules."""
        for module in _MODULES:
            module.os = self
        try:
            yield
        finally:
            self.forget_process()
            for module in _MODULES:
                module.os = os

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Remember no writes meanwhile: they go to files of other folders."""
        synced = self._synced.copy()
        try:
            yield
        finally:
            self._synced = synced

    def open(self, path: str | Path, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        if flags & os.O_APPEND:
            self._names[fd] = os.path.basename(path)
        return fd

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: memoryview) -> int:
        if self.fuse is None or self.fuse >= len(data):
            count = os.write(fd, data)
            self.log.append((self._names[fd], bytes(data)))
            if self.fuse is not None:
                self.fuse -= count
            return count
        part, self.fuse = data[: self.fuse], None
        self.log.append((self._names[fd], bytes(part)))
        os.write(fd, part)
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space is left")
        raise Died

    def fsync(self, fd: int) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                if self.is_full:
                    raise OSError(errno.EIO, "the disk is broken")
                raise Died
        os.fsync(fd)
        name = self._names.get(fd)
        if name is None:
            # A new file that takes the place of another is called .NAME.tmp until then.
            path = os.readlink(f"/proc/self/fd/{fd}")
            name = path.rpartition("/")[2].removeprefix(".").removesuffix(".tmp")
        self._synced[name] = os.fstat(fd).st_size

    def forget_process(self) -> None:
        """Close the files that a process had open when it died; no fuse burns any more."""
        self.fuse, self.is_full = None, False
        for fd in list(self._names):
            self.close(fd)

    def lose_power(self, files: Sequence[Path], below: Callable[[int], int]) -> None:
        """Cut each file to its synced bytes and a part of the others; `below` chooses how many."""
        for path in files:
            size = path.stat().st_size if path.exists() else 0
            safe = min(size, self._synced.get(path.name, 0))
            if size > safe:
                os.truncate(path, safe + below(size - safe + 1))
        self._synced.update((path.name, path.stat().st_size) for path in files if path.exists())

    def begin(self) -> None:
        """Forget the last history."""
        self.forget_process()
        self.log.clear()
        self._synced.clear()
