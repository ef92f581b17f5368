"""The messages between a check process and the process in which MSAdapter runs.

Comes in: a request. Goes out: one reply to each. Called by both ends, `mindtorch_backend` and
`mindtorch_device`. Host arrays, Python values and text only: neither end may load the other's torch.
"""

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ray_precheck.frameworks.base import CallPlan, Leaf
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor


@dataclass(frozen=True, slots=True)
class Resolve:
    """The request to find an API; the reply is an error if there is none."""

    name: ApiName


@dataclass(frozen=True, slots=True)
class Forward:
    """Run an API; the reply is `Ran`."""

    name: ApiName
    call: HostCall
    plan: CallPlan


@dataclass(frozen=True, slots=True)
class Gradients:
    """Differentiate the forward call `number`, which is the last one; the reply is a list of gradients."""

    number: int
    cotangents: list[HostTensor | None]


@dataclass(frozen=True, slots=True)
class Ran:
    """The flattened outputs of a call and what it changed, and its number, by which its gradients are asked
    for."""

    number: int
    outputs: list[Leaf]
    changed: list[HostTensor]


@dataclass(frozen=True, slots=True)
class Seed:
    """Seed every generator."""

    seed: int


@dataclass(frozen=True, slots=True)
class Prove:
    """Compute 1 + 1."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a request."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that was raised instead: the name of its type and its text.

    `lacks_kernel`: the device has no kernel. `refused`: it cannot be checked.
    """

    type_name: str
    text: str
    lacks_kernel: bool = False
    refused: bool = False


Request = Resolve | Forward | Gradients | Seed | Prove
Reply = Returned | Raised


def send_message(pipe: Connection, message: Request | Reply) -> None:
    """Send a message, its arrays one after the other behind it, without copies in between.

    Raises:
        OSError: the other end is closed.
    """
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    pipe.send_bytes(len(buffers).to_bytes(4, "little") + data)
    for buffer in buffers:
        pipe.send_bytes(buffer.raw())


def receive_message(pipe: Connection) -> Any:
    """Wait for a message and return it; its arrays are its own and may be written to.

    Raises:
        EOFError: the other end is closed.
    """
    head = memoryview(pipe.recv_bytes())
    count = int.from_bytes(head[:4], "little")
    buffers = [bytearray(pipe.recv_bytes()) for _ in range(count)]
    return pickle.loads(head[4:], buffers=buffers)
