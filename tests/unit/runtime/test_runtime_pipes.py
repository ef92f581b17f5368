"""Messages with arrays over a pipe: bit for bit, or not at all."""

import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from ray_precheck.runtime.workers.messages import Sealed, receive, receive_shared, seal, send

pytestmark = pytest.mark.unit

DTYPES = ("float16", "float32", "float64", "complex128", "int8", "uint16", "int64", "bool")
Ends = tuple[Connection, Connection]


@pytest.fixture(name="ends")
def make_ends() -> Iterator[Ends]:
    first, second = Pipe()
    with first, second:
        yield first, second


def passed(message: object, ends: Ends) -> Any:
    """Send a message through a pipe, which holds less than it."""
    sender = threading.Thread(target=send, args=(ends[0], message))
    sender.start()
    try:
        return receive(ends[1])
    finally:
        sender.join()


def same_bits(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    return (first.dtype, first.shape) == (second.dtype, second.shape) and (
        first.tobytes() == second.tobytes()
    )


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """An array of any shape, 0-d and empty too, with any bits, contiguous or not."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype).reshape(shape)
    how = draw(st.sampled_from(["as it is", "transposed", "every second", "backwards"]))
    if how == "transposed":
        return array.T
    if how == "every second" and array.ndim:
        return array[..., ::2]
    return array[::-1] if how == "backwards" and array.ndim else array


@settings(deadline=None, max_examples=150)
@given(st.lists(arrays(), max_size=4), st.booleans())
def test_arrays_arrive_with_the_same_bits(sent: list[np.ndarray[Any, Any]], sealed: bool) -> None:
    first, second = Pipe()
    with first, second:
        found = passed(seal(sent) if sealed else {"arrays": sent}, (first, second))
    got = found.open() if sealed else found["arrays"]
    assert len(got) == len(sent)
    assert all(map(same_bits, sent, got))


def test_an_array_that_is_in_a_message_twice_arrives_once(ends: Ends) -> None:
    array = np.arange(4.0)
    first, second = passed([array, array], ends)
    assert first is second


def test_arrays_that_arrive_can_be_written(ends: Ends) -> None:
    array = passed(np.arange(4.0), ends)
    array[0] = 7.0
    assert array.tolist() == [7.0, 1.0, 2.0, 3.0]


def test_an_array_of_100_mb_passes(ends: Ends) -> None:
    array = np.arange(100 * 10**6, dtype=np.uint8)
    assert np.array_equal(passed(array, ends), array)


def test_messages_come_in_the_order_in_which_they_were_sent(ends: Ends) -> None:
    for message in ("a", np.zeros(3), "b"):
        send(ends[0], message)
    assert receive(ends[1]) == "a"
    assert receive(ends[1]).shape == (3,)
    assert receive(ends[1]) == "b"


@pytest.mark.parametrize("kept", ["nothing", "half the header", "the header", "no arrays"])
def test_a_message_that_is_cut_is_the_end_of_the_pipe(kept: str) -> None:
    first, second = Pipe()
    body = struct.pack("<2Q", 1, 8000) + pickle.dumps(None)
    whole = struct.pack("!i", len(body)) + body
    lengths = {"nothing": 0, "half the header": 10, "the header": 20, "no arrays": len(whole)}
    with second:
        with first:
            os.write(first.fileno(), whole[: lengths[kept]])
        # The standard library says so of its own part in two ways; who calls knows both.
        with pytest.raises((EOFError, OSError)):
            receive(second)


def test_a_message_without_arrays_is_one_write(ends: Ends) -> None:
    send(ends[0], {"text": "a" * 1000})
    with socket.socket(fileno=os.dup(ends[1].fileno())) as wire:
        waiting = len(wire.recv(1 << 16, socket.MSG_PEEK))
    (length,) = struct.unpack("!i", os.read(ends[1].fileno(), 4))
    assert waiting == 4 + length


def test_no_descriptor_is_left_open(ends: Ends) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        passed(np.arange(1000.0), ends)
    assert set(os.listdir("/proc/self/fd")) == before


def test_to_send_into_a_closed_pipe_is_an_os_error(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(OSError):
        send(ends[0], np.zeros(10**6))


def test_who_receives_arrays_can_lend_their_memory(ends: Ends) -> None:
    first, second = np.arange(1000.0), np.zeros(3)
    send(ends[0], seal([first, second]))
    sealed, shared = receive_shared(ends[1])
    assert shared is not None
    assert shared.lengths == (8000, 24)
    again = passed(Sealed(sealed.data, shared=shared), ends)
    assert list(map(same_bits, again.open(), (first, second))) == [True, True]
    assert again.nbytes == sealed.nbytes


def test_a_message_without_arrays_has_no_memory_to_lend(ends: Ends) -> None:
    send(ends[0], [1, np.zeros(0)])
    assert receive_shared(ends[1])[1] is None


def test_a_descriptor_that_does_not_arrive_is_the_end_of_the_pipe(ends: Ends) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ends[0].send_bytes(struct.pack("<2Q", 1, 8) + pickle.dumps(None))
    os.write(ends[0].fileno(), b"\0")
    with pytest.raises(EOFError):
        receive(ends[1])
    assert set(os.listdir("/proc/self/fd")) == before
