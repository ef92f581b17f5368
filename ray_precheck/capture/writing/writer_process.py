"""The process that writes the files of captured tensors, and the lines of the log behind them.

Comes in: memory that the training shares with it, entry behind entry, and by a socket the descriptors of the
log and of the folder of a step. Goes out: files, links and lines, in the order of the entries, so that the
log never has a line whose files are not there, whatever ends this process. Started by `shared_writer`, which
does what is left itself if this process ends: whatever an entry asks for may be done again.

It is run as a file by a bare Python (-I -S), and imports nothing of this package: it is there in 20 ms, and
no `sitecustomize` starts a capture in it. It ends when it is told to, or when the training has ended, and has
written by then what that has left.

    page      a byte that is 1 after a failure, the number of this process, how many entries there were in
              all and how many are done, and the failure
    ring      entries: the fields of ENTRY, a name, and at a multiple of 64 bytes a file or a line

Entries are counted by two eventfds, which also order what both processes see of the memory: the training adds
to the first how many are new, this process 1 to the second when it has done one. The counts in the memory are
for what one of the two leaves that is killed, or an exception in the midst of a call.
"""

import mmap
import os
import select
import socket
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from struct import Struct

FILE, LINK, LINE, BEGIN, END, STOP, FIRST = range(7)
# The size that the log has before a line; then the kind of the entry, the bytes of its name, where its
# content begins and its size, where in that the values of a tensor begin and their size, and at which two
# places their CRC-32 is to stand: without a place it is not asked for.
ENTRY = Struct("<Q8I")
ALIGNED = 64
# In front of the ring.
PAGE = 4096
FAILED, PROCESS, FAILURE = 0, 4, 24
# Words of 8 bytes, each written at once: how many entries there were; how many are done, in the upper half,
# and where the next one begins.
COUNT, DONE, HALF = 1, 2, 32
PROCESS_ID, _LENGTH, _CHECKSUM = Struct("<I"), Struct("<I"), Struct("<I")
_LOOK_AT_PARENT_MS = 1000
_PIECE = 1 << 20
# The CRC-32 of so many bytes of the memory from a place on.
Checksum = Callable[[int, int], int]


class Writing:
    """Does what the entries of one step ask for; `log` and `folder` are descriptors."""

    def __init__(self, memory: memoryview, checksum: Checksum, log: int = -1, folder: int = -1):
        self.memory = memory
        self.log, self.folder = log, folder
        self._checksum = checksum

    def perform(self, place: int, *, is_again: bool = False) -> None:
        """Write the file, the link or the line of an entry; `is_again`: some of it may be there.

        After a failure, which is noted in the memory, nothing is written.
        """
        memory = self.memory
        if memory[FAILED]:
            return
        size_before, kind, name_size, begin, size, *values = ENTRY.unpack_from(memory, place)
        name = bytes(memory[place + ENTRY.size : place + ENTRY.size + name_size])
        content = place + begin
        try:
            if kind == LINE:
                if is_again:
                    os.ftruncate(self.log, size_before)
                self._append(memory[content : content + size], size_before)
            elif kind == FILE:
                self._fill_in(content, *values)
                self._new(name, lambda: self._write(name, memory[content : content + size]))
            elif kind == LINK:
                first, _, name = name.partition(b"\0")
                self._link(first, name)
        except OSError as error:
            note_failure(memory, error, b"" if kind == LINE else name)

    def _append(self, line: memoryview, size_before: int) -> None:
        try:
            _write_all(self.log, line)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.log, size_before)
            raise

    def _fill_in(self, content: int, begin: int, size: int, *places: int) -> None:
        """Put the checksum of the values to its places."""
        if any(places):
            checksum = _CHECKSUM.pack(self._checksum(content + begin, size))
            for place in places:
                self.memory[content + place : content + place + len(checksum)] = checksum

    def _new(self, name: bytes, make: Callable[[], None]) -> None:
        """Make a file, in the place of one that is there."""
        try:
            make()
        except FileExistsError:
            os.unlink(name, dir_fd=self.folder)
            make()

    def _write(self, name: bytes, content: memoryview) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(name, flags, 0o666, dir_fd=self.folder)
        try:
            _write_all(file, content)
        finally:
            os.close(file)

    def _link(self, first: bytes, name: bytes) -> None:
        here = self.folder
        try:
            self._new(name, lambda: os.link(first, name, src_dir_fd=here, dst_dir_fd=here))
        except OSError:  # a file system without links, or too many of them
            file = os.open(first, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)
            with open(file, "rb") as known:
                content = memoryview(known.read())
            self._new(name, lambda: self._write(name, content))


def _write_all(file: int, content: memoryview) -> None:
    written = os.write(file, content)
    while written < len(content):  # the disk is almost full, or the file at its limit
        written += os.write(file, content[written:])


def note_failure(memory: memoryview, error: OSError, name: bytes) -> None:
    """Leave in the memory which error has ended the writing, and of which tensor's file, b"" for the log."""
    is_named = error.filename is not None
    text = b"%d\0%d\0%b" % (error.errno or 0, is_named, name)
    memory[FAILURE : FAILURE + _LENGTH.size] = _LENGTH.pack(len(text))
    memory[FAILURE + _LENGTH.size : FAILURE + _LENGTH.size + len(text)] = text
    memory[FAILED] = 1


def failure_in(memory: memoryview) -> tuple[int, bool, str]:
    """Return the number of the error that `note_failure` has left, whether it names a file, and the name."""
    (size,) = _LENGTH.unpack_from(memory, FAILURE)
    begin = FAILURE + _LENGTH.size
    number, is_named, name = bytes(memory[begin : begin + size]).split(b"\0", 2)
    return int(number), is_named == b"1", os.fsdecode(name)


def entry_at(memory: memoryview, place: int) -> tuple[int, int, int]:
    """Return the place, the kind and the size of the entry that comes at a place, or at the ring's begin."""
    _, kind, _, begin, size, *_ = ENTRY.unpack_from(memory, place)
    return entry_at(memory, PAGE) if kind == FIRST else (place, kind, aligned_size(begin + size))


def aligned_size(size: int) -> int:
    """Return the next multiple of `ALIGNED`."""
    return (size + ALIGNED - 1) // ALIGNED * ALIGNED


def checksum_in(memory: mmap.mmap, view: memoryview, extension: str) -> Checksum:
    """Return what finds the CRC-32 of memory: the extension of this package, if its file is named, and zlib
    for what that leaves out: a few bytes, and other processors."""

    def of_zlib(place: int, size: int) -> int:
        return zlib.crc32(view[place : place + size])

    try:
        from ctypes import addressof, c_char
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import module_from_spec, spec_from_file_location

        loader = ExtensionFileLoader("_one_pass", extension)
        spec = spec_from_file_location("_one_pass", extension, loader=loader)
        if spec is None or not extension:
            return of_zlib
        compiled = module_from_spec(spec)
        loader.exec_module(compiled)
    except ImportError:
        return of_zlib
    address = addressof(c_char.from_buffer(memory))

    def of_extension(place: int, size: int) -> int:
        found: int = compiled.crc32(address + place, size)
        return of_zlib(place, size) if found < 0 else found

    return of_extension


def write_for(parent: int, writing: Writing, wake: int, done: int, channel: socket.socket) -> None:
    """Do what entries ask for until one says to stop, or the parent has ended and nothing is left."""
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    with suppress(OSError, AttributeError):  # not everywhere; then it is seen a second later
        poller.register(os.pidfd_open(parent), select.POLLIN)
    memory, place, told = writing.memory, PAGE, 0
    words = memory.cast("Q")
    is_alive = True
    while is_alive:
        woken = [file for file, _ in poller.poll(_LOOK_AT_PARENT_MS)]
        if wake in woken:
            told += os.eventfd_read(wake)
        else:
            # Not by the end of the socket, which the children of the training hold open, too.
            is_alive = not woken and _is_running(parent)
            told = told if is_alive else words[COUNT]
        told = min(told, words[COUNT])
        while words[DONE] >> HALF < told:
            place, kind, size = entry_at(memory, place)
            if kind in (BEGIN, END) and writing.log >= 0:
                os.close(writing.log)
                os.close(writing.folder)
                writing.log = writing.folder = -1
            if kind == BEGIN:
                _, (writing.log, writing.folder), *_ = socket.recv_fds(channel, 1, 2)
            elif kind == STOP:
                return
            elif kind != END:
                writing.perform(place)
            place += size
            words[DONE] = ((words[DONE] >> HALF) + 1) << HALF | place
            os.eventfd_write(done, 1)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it has taken another user's rights
    return True


def main() -> None:
    """Write for the process that has started this one, which has named its descriptors.

    The process that it has started ends at once: a child of the training would be found by a script that
    waits for all of its children.
    """
    parent, memory_file, wake, done, channel = map(int, sys.argv[1:6])
    memory = mmap.mmap(memory_file, 0)
    child = os.fork()
    if child:
        PROCESS_ID.pack_into(memory, PROCESS, child)
        os._exit(0)
    view = memoryview(memory)
    writing = Writing(view, checksum_in(memory, view, sys.argv[6]))
    write_for(parent, writing, wake, done, socket.socket(fileno=channel))


if __name__ == "__main__":
    main()
