"""Messages between a check process and the process of MSAdapter arrive as they were sent."""

from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import numpy as np
import pytest

from ray_precheck.frameworks.base import CallPlan
from ray_precheck.frameworks.mindtorch.messages import (
    Forward,
    Gradients,
    Raised,
    Returned,
    receive_message,
    send_message,
)
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor, Symbol

pytestmark = pytest.mark.unit


def through(message: Any) -> Any:
    """Send a message from another thread, as a large one fills the pipe, and receive it."""
    near, far = Pipe()
    with near, far:
        sender = Thread(target=send_message, args=(near, message))
        sender.start()
        try:
            return receive_message(far)
        finally:
            sender.join()


@pytest.mark.parametrize(
    "message",
    [
        Returned([1, 2.5, None, "text"]),
        Raised("ValueError", "no", lacks_kernel=True),
        Forward(
            ApiName("Torch", "add", 3),
            HostCall((1, slice(0, 2), Symbol("dtype", "float16")), {"alpha": 2}),
            CallPlan((0,), in_place=True),
        ),
    ],
)
def test_messages_without_arrays(message: Any) -> None:
    assert through(message) == message


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5), (1 << 20,)])
def test_arrays_of_every_size(shape: tuple[int, ...]) -> None:
    data = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    got = through(Gradients(1, [HostTensor("float32", data), None]))
    assert got.cotangents[0].shape == shape
    assert np.array_equal(got.cotangents[0].data, data)
    assert got.cotangents[1] is None


def test_arrays_that_are_not_contiguous() -> None:
    data = np.arange(12.0).reshape(3, 4).T
    got = through(Returned([HostTensor("float64", data)]))
    assert np.array_equal(got.value[0].data, data)


def test_what_has_arrived_may_be_written_to_and_is_a_copy() -> None:
    data = np.zeros(4)
    (got,) = through(Returned([HostTensor("float64", data)])).value
    got.data[0] = 1.0
    assert data[0] == 0.0


def test_an_end_that_is_closed_is_seen() -> None:
    near, far = Pipe()
    far.close()
    with pytest.raises(OSError):
        send_message(near, Returned())
    with pytest.raises(EOFError):
        receive_message(near)
    assert isinstance(near, Connection)
