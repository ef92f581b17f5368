"""The messages in the pipe between a check process and the worker that started it.

`Sealed` tensors in an answer go on from the worker to a bench worker, on the same machine or on
another.
"""

import pickle
from dataclasses import dataclass
from typing import Any

from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.workers.shared_arrays import LentArrays, SharedArrays
from ray_precheck.schema.done import Done
from ray_precheck.schema.failure import Cause
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import DeviceSlot


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Sealed:
    """An object that only check processes unpickle, because it may hold objects of a framework, which
    workers and the driver must not load.

    Its arrays are in `buffers`, each as `(N,)` uint8, or in `shared`, memory that processes of this
    machine can open.
    """

    data: bytes
    buffers: tuple[Any, ...] = ()
    shared: SharedArrays | LentArrays | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        in_memory = 0 if self.shared is None else sum(self.shared.lengths)
        return len(self.data) + in_memory + sum(int(buffer.nbytes) for buffer in self.buffers)

    def for_others(self) -> "Sealed":
        """Return the object with arrays that Ray can send to another machine; nothing is copied."""
        return self if self.shared is None else Sealed(self.data, tuple(self.shared.open()))

    def open(self) -> Any:
        """Return the object that was sealed; its arrays share memory with the buffers.

        Raises:
            OSError: the process that has the shared memory is gone, or out of reach.
        """
        return pickle.loads(self.data, buffers=self.for_others().buffers)


def seal(content: object) -> Sealed:
    """Seal an object for another check process; nothing is copied."""
    import numpy as np

    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    return Sealed(data, tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers))


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a check process: its device and the job's opener.

    `phase_fd` is the descriptor of a file of one byte, to which the process writes its phase.
    """

    slot: DeviceSlot
    opener: Opener
    phase_fd: int


@dataclass(frozen=True, slots=True)
class Started:
    """The reply to `Start`. With a `failure`, the reason in words, the process ends.

    `caveat` is a sentence about a limit of the device's precision, "" for none.
    """

    failure: str = ""
    caveat: str = ""


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Work:
    """A record that the check process has to run, through the stage `stage` with `threads` threads.

    `half` holds what the device measured, for the stage BENCH. `files` are the captured files of the
    record, None where the runner reads them from their folder. `is_near`: the bench of a record
    whose stage is DEVICE will run on this machine.
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
    """The reply to a `Work`: the result (`done`), or what the device measured (`half`), or neither of
    them where the record needs a device and this process has none.

    Where the record broke the process, `cause` and `reason` say how, and the process ends. `began_s`
    is in seconds since the epoch.
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
        """Whether the answer holds tensors."""
        return self.half is not None
