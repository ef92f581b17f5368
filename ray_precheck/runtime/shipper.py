"""Files on their way to workers that cannot see the folder they are in.

Comes in: batches that are about to be sent, by ticket. Goes out: for each `StoredFiles` in Ray's
object store with the files that its records name. Called by the driver's loop, on one thread; files
are read and put on a thread of its own, ahead of the batches. The bytes in flight are bounded.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from ray_precheck.errors import StoppedError
from ray_precheck.foreign import first_line
from ray_precheck.runtime.job import InputFiles
from ray_precheck.schema.task import Task


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Files in the object store: `ref` refers to a dict from task index to the files for its runner.

    `nbytes` are the bytes of the files; a file that several tasks name is stored once.
    """

    ref: Any
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The content planned for a transfer: the file names of each task, the limit of each file, and
    the sum of bytes."""

    names: dict[int, tuple[str, ...]]
    limits: dict[str, int]
    nbytes: int


@dataclass(slots=True)
class _Shipment:
    """A ticket between `prepare` and `forget`. `transfer` is None until there is room to read it."""

    manifest: Future[_Manifest]
    transfer: Future[StoredFiles] | None = None


class Shipper:
    """Reads the files of prepared batches in the order in which they were prepared.

    The bytes that are put and not forgotten, with those that are being read, never exceed
    `most_bytes`; a batch that is larger than that goes alone. `put` keeps an object where actors of
    all machines can get it (`ray.put`). Files are read by `executor`; None: by a thread of its own.
    """

    def __init__(
        self,
        input_files: InputFiles,
        most_bytes: int,
        *,
        put: Callable[[object], object],
        executor: Executor | None = None,
    ) -> None:
        self._input_files = input_files
        self._most_bytes = most_bytes
        self._put = put
        # No thread ever waits for room: a step is handed to the executor when it can be done.
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="shipper")
        self._lock = Lock()
        self._shipments: dict[int, _Shipment] = {}
        self._waiting: deque[int] = deque()
        self._fresh: list[int] = []
        self._in_flight_bytes = 0

    def prepare(self, ticket: int, tasks: Sequence[Task]) -> None:
        """Begin to read the files of a batch. A ticket is prepared once."""
        with self._lock:
            manifest = self._executor.submit(self._list_files, tuple(tasks))
            self._shipments[ticket] = _Shipment(manifest)
            self._waiting.append(ticket)
        manifest.add_done_callback(self._advance)

    def has(self, ticket: int) -> bool:
        """Return whether a ticket was prepared and not forgotten."""
        with self._lock:
            return ticket in self._shipments

    def ready(self) -> list[int]:
        """Return the tickets that have become ready, or have failed, since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            return [ticket for ticket in fresh if ticket in self._shipments]

    def take(self, ticket: int) -> StoredFiles | None:
        """Return the transfer of a prepared ticket, again and again; None while it is not there yet.

        Raises:
            StoppedError: a file could not be read or stored; its cause is that error.
        """
        with self._lock:
            shipment = self._shipments[ticket]
        for step in (shipment.manifest, shipment.transfer):
            if step is None or not step.done():
                return None
            error = step.exception()
            if error is not None:
                raise StoppedError(
                    f"cannot send the captured tensors in {self._input_files.folder} to another machine:"
                    f" {first_line(error) or type(error).__name__}"
                ) from error
        return None if shipment.transfer is None else shipment.transfer.result()

    def forget(self, ticket: int) -> None:
        """Free the files of a ticket, at any time; an unknown ticket is ignored.

        Files that are being read for it count until the read has ended.
        """
        with self._lock:
            shipment = self._shipments.pop(ticket, None)
        if shipment is None:
            return
        if shipment.transfer is not None:
            # Only the number is kept: a reference to the shipment would keep its object in Ray's
            # store.
            freed = partial(self._release, shipment.manifest.result().nbytes)
            shipment.transfer.add_done_callback(freed)  # at once where it has ended
            shipment.transfer.cancel()
        self._advance()

    def close(self) -> None:
        """Forget everything and end the thread; safe to call twice. Ray must still be there."""
        with self._lock:
            self._waiting.clear()
            tickets = list(self._shipments)
        for ticket in tickets:
            self.forget(ticket)
        self._executor.shutdown(cancel_futures=True)

    def _advance(self, _: object = None) -> None:
        """Begin to read the next batches for which there is room, in the order of their preparation.

        Called whenever a list of files is made, and whenever bytes are freed, on any thread.
        """
        begun: list[tuple[int, Future[Any]]] = []
        with self._lock:
            while self._waiting:
                ticket = self._waiting[0]
                shipment = self._shipments.get(ticket)
                if shipment is not None:
                    if not shipment.manifest.done():
                        break
                    step = self._begin(shipment)
                    if step is None:
                        break
                    begun.append((ticket, step))
                self._waiting.popleft()
        for ticket, step in begun:
            step.add_done_callback(partial(self._announce, ticket))

    def _begin(self, shipment: _Shipment) -> Future[Any] | None:
        """Begin to make a transfer; return the step that ends it, None if there is no room yet."""
        if shipment.manifest.exception() is not None:
            return shipment.manifest
        manifest = shipment.manifest.result()
        total = self._in_flight_bytes + manifest.nbytes
        if manifest.nbytes and self._in_flight_bytes and total > self._most_bytes:
            return None
        self._in_flight_bytes = total
        shipment.transfer = self._executor.submit(self._pack, manifest)
        return shipment.transfer

    def _announce(self, ticket: int, _: object) -> None:
        with self._lock:
            self._fresh.append(ticket)

    def _release(self, freed_bytes: int, _: object) -> None:
        with self._lock:
            self._in_flight_bytes -= freed_bytes
        self._advance()

    def _list_files(self, tasks: Sequence[Task]) -> _Manifest:
        """Return the files that the records of a batch name, with their sizes in bytes."""
        names: dict[int, tuple[str, ...]] = {}
        limits: dict[str, int] = {}
        for task in tasks:
            of_task = self._input_files.limits(task, self._most_bytes)
            names[task.index] = tuple(of_task)
            for name, limit in of_task.items():
                limits[name] = max(limit, limits.get(name, 0))
        sizes = {name: self._input_files.size_bytes(name) for name in limits}
        # Files above their limit are not read; a file that grows from here on is above its limit, too.
        nbytes = sum(size for name, size in sizes.items() if size <= limits[name])
        limits = {name: min(limit, sizes[name]) for name, limit in limits.items()}
        return _Manifest(names, limits, nbytes)

    def _pack(self, manifest: _Manifest) -> StoredFiles:
        content = {
            name: self._input_files.ship(name, limit) for name, limit in manifest.limits.items()
        }
        by_task = {
            index: self._input_files.packed({name: content[name] for name in names})
            for index, names in manifest.names.items()
        }
        # The content of a refused file is a sentence, which has no `nbytes`.
        nbytes = sum(getattr(one, "nbytes", 0) for one in content.values())
        return StoredFiles(self._put(by_task), nbytes)
