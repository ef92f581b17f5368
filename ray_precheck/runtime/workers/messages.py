"""What goes through the pipe between a check process and the one who started it, and what of it
goes on to a bench: on the same machine or on another."""

import pickle
from dataclasses import dataclass
from typing import Any

from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.tensors.shared_arrays import SharedArrays
from ray_precheck.runtime.tensors.shared_pool import SharedPool
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.done import Done
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import DeviceSlot


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Sealed:
    """Something that only check processes open: it may hold objects of a framework, which whoever
    hands it on must not load. Its arrays are `buffers`, each as `(N,)` uint8, or lie in memory that
    processes of this machine share: then `shared`.
    """

    data: bytes
    buffers: tuple[Any, ...] = ()
    shared: SharedArrays | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        in_memory = 0 if self.shared is None else self.shared.nbytes
        return len(self.data) + in_memory + sum(int(buffer.nbytes) for buffer in self.buffers)

    def for_others(self) -> "Sealed":
        """Return it with arrays that may go to another machine; they are not copied."""
        return self if self.shared is None else Sealed(self.data, tuple(self.shared.open()))

    def open(self) -> Any:
        """Return what was sealed; its arrays share memory with the buffers."""
        return pickle.loads(self.data, buffers=self.for_others().buffers)


def seal(content: object, pool: SharedPool | None = None) -> Sealed:
    """Seal what may only be opened in a check process; its arrays are not copied, but for those that
    it shares with other processes of this machine, through a `pool`.

    Raises:
        OSError: there is no memory left to share.
    """
    import numpy as np

    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    if pool is not None and buffers:
        return Sealed(data, shared=pool.share([buffer.raw() for buffer in buffers]))
    return Sealed(data, tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is told first; `phase_fd` is the file in which it says what it is at."""

    slot: DeviceSlot
    opener: Opener
    phase_fd: int


@dataclass(frozen=True, slots=True)
class Started:
    """The process is ready, or cannot be: then `failure` says why, and it ends. `caveat` is what limits
    the precision of its device, "" for nothing."""

    failure: str = ""
    caveat: str = ""


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Work:
    """One record: its `index`, its payload, what is to be done, with how many threads, what the device
    made of it for the bench's half (`half`), and its files where the runner does not read them from a
    folder. `is_near`: the bench of a device's half is on the same machine.
    """

    index: int
    payload: Any
    stage: Stage = Stage.CHECK
    threads: int = 1
    half: Sealed | None = None
    files: Any = None
    is_near: bool = False


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one record: it is done, or its device's half is, or neither: it needs a device.
    Where it broke the process `cause` and `reason` say how, and the process ends.
    """

    index: int
    done: Done | None = None
    half: Sealed | None = None
    cause: Cause | None = None
    reason: str = ""
    began_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def is_large(self) -> bool:
        """Whether it holds tensors."""
        return self.half is not None
