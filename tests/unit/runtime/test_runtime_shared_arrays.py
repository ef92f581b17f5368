"""Arrays in shared memory: the same bits, where NumPy reads them fast, and nothing left open."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.runtime.workers.shared import CAN_LEND, LentArrays, SharedArrays, share

pytestmark = pytest.mark.unit
LINUX = pytest.mark.skipif(not CAN_LEND, reason="only Linux has memfd and /proc")

# Lends an array, and lives until its standard input is closed.
LENDER = """
import pickle, sys
from ray_precheck.runtime.workers.shared import share
shared = share([memoryview(b"abc" * 1000), memoryview(b"")])
sys.stdout.buffer.write(pickle.dumps(shared))
sys.stdout.buffer.flush()
sys.stdin.read()
"""
ALL = [b"abc" * 1000, b""]
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def lent(shared: SharedArrays) -> LentArrays:
    found = pickle.loads(pickle.dumps(shared))
    assert isinstance(found, LentArrays)
    return found


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_arrays_come_out_as_they_went_in_and_aligned(contents: list[bytes]) -> None:
    shared = share([memoryview(content) for content in contents])
    arrays = shared.open()
    assert [array.tobytes() for array in arrays] == contents
    assert shared.lengths == tuple(map(len, contents))
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


def start(*before: str) -> "subprocess.Popen[bytes]":
    command = [*before, sys.executable, "-c", LENDER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def lent_by(process: "subprocess.Popen[bytes]") -> LentArrays:
    assert process.stdout is not None
    found = pickle.load(process.stdout)
    process.stdout.close()
    assert isinstance(found, LentArrays)
    return found


def end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@pytest.fixture(name="lender")
def start_lender() -> Iterator["subprocess.Popen[bytes]"]:
    process = start()
    yield process
    end(process)


@LINUX
def test_what_another_process_lends_is_there_and_stays_when_it_ends(
    lender: "subprocess.Popen[bytes]",
) -> None:
    before = open_descriptors()
    arrays = lent_by(lender).open()
    end(lender)
    assert [array.tobytes() for array in arrays] == ALL
    assert open_descriptors() <= before


@LINUX
def test_lent_memory_is_the_memory_itself() -> None:
    shared = share([memoryview(b"abc")])
    (own,), (other,) = shared.open(), lent(shared).open()
    other[0] = ord("x")
    assert own.tobytes() == b"xbc"


@LINUX
def test_a_lender_that_has_gone_lends_nothing(lender: "subprocess.Popen[bytes]") -> None:
    found = lent_by(lender)
    end(lender)
    with pytest.raises(OSError):
        found.open()


@LINUX
def test_a_descriptor_that_is_something_else_by_now_is_not_opened() -> None:
    shared, other = share([memoryview(b"abc")]), share([memoryview(b"abc")])
    reading, writing = os.pipe()
    try:
        # What waits to be read or written must not be opened, and other memory is not what was lent.
        for handle in (reading, other.handle, 10**6):
            path = f"/proc/{os.getpid()}/fd/{handle}"
            with pytest.raises(OSError):
                replace(lent(shared), path=path).open()
    finally:
        os.close(reading)
        os.close(writing)


@LINUX
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not make process namespaces",
)
def test_a_lender_in_another_container_is_no_lender() -> None:
    process = start(*UNSHARE)
    try:
        found = lent_by(process)
        assert found.path.startswith(
            "/proc/1/"
        )  # as it is called in there; here that is another one
        with pytest.raises(OSError):
            found.open()
    finally:
        end(process)
