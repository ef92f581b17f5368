"""The actor on every slot. It runs no API itself: it starts a check process and watches it.

Comes in: an `Order`. Goes out: a `BatchReport`, which has numbers and text only. What the device
measured of records whose bench runs elsewhere stays here until a bench worker has opened the memory, or
Ray has brought a copy to another machine. An API that crashes or hangs ends the check process alone: the
report then has the records that were finished, and the record that broke the process. A slot
without a device computes benches only.

The order of a worker's batches: the next batch is handed in while the batch before it runs. The driver
numbers the batches of a worker from 1 on without a gap; Ray may begin the calls in any order.
"""

import math
import resource
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ray_precheck.errors import DeviceError
from ray_precheck.foreign import caught
from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.workers.fork_server import NodeServer, NotForked, ServerAddress
from ray_precheck.runtime.workers.messages import Sealed, Work
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.runtime.workers.shared import CAN_LEND
from ray_precheck.schema.task import BatchReport, DeviceSlot


class Turns:
    """Lets batches pass two gates, each in the order of their numbers and one at a time: first to be
    handed in to the check process, then to run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passed = {"handing in": 0, "running": 0}
        self._obsolete = 0

    def handing_in(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until all batches before this one are handed in; yield False if it was forgotten."""
        return self._gate("handing in", turn)

    def running(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until all batches before this one have run; yield False if it was forgotten."""
        return self._gate("running", turn)

    @contextmanager
    def _gate(self, gate: str, turn: int) -> Iterator[bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._passed[gate] >= turn - 1)
            counts = turn > self._obsolete
        try:
            yield counts
        finally:
            with self._changed:
                self._passed[gate] = max(self._passed[gate], turn)
                self._changed.notify_all()

    def forget(self, last: int) -> None:
        """Forget the batches up to `last`: they do nothing, and no batch waits for them."""
        with self._changed:
            self._obsolete = last
            self._passed = dict.fromkeys(self._passed, last)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Order:
    """A batch for a worker: the payloads of its records, and for each of them the limit in seconds and
    the number of threads of its bench.

    `budget_s` is the limit of a bench. `is_near`: all benches of records whose stage is DEVICE will run
    on this machine. `turn` numbers the batches that are sent to this actor, from 1 on.
    """

    payloads: tuple[Any, ...]
    limits_s: tuple[float, ...]
    threads: tuple[int, ...]
    turn: int
    ticket: int = 0
    stage: Stage = Stage.CHECK
    budget_s: float = math.inf
    is_near: bool = False


class Worker:
    """Runs batches in a check process. `open` comes first, and again for a fresh process.

    Check processes are forks of the `server`, where there is one and as long as it forks.
    """

    # The threads that answer calls, by name, and the methods that each answers: while one thread runs
    # a batch, a second takes in the next batch, a third tells that the process is there, and a fourth
    # answers all other calls.
    THREADS: ClassVar[Mapping[str, tuple[int, tuple[str, ...]]]] = {
        "batches": (2, ("run",)),
        "pulse": (1, ("pulse",)),
        "control": (1, ("hand_over", "release", "halt")),
    }

    def __init__(
        self,
        slot: DeviceSlot,
        opener: Opener,
        server: ServerAddress | NodeServer | None = None,
        *,
        debug: bool = False,
    ) -> None:
        self._slot = slot
        self._opener = opener
        self._server = server.opened(debug=debug) if isinstance(server, NodeServer) else server
        self._debug = debug
        self._process: CheckProcess | None = None
        self._made: dict[int, dict[int, Sealed]] = {}
        self._halted = threading.Event()
        self._is_ended = False
        self._turns = Turns()
        _allow_descriptors()

    def open(self, last_turn: int) -> str:
        """Take a fresh check process.

        Batches up to `last_turn` were meant for the process before, and are not run any more. Returns
        a sentence about a limit of the device's precision, "" for none.

        Raises:
            DeviceError: the process could not start; the text says why.
        """
        self._turns.forget(last_turn)
        if self._process is not None:
            self._process.close()
        if self._server is not None:
            caveat, error = caught(partial(self._launch, self._server))
            if caveat is not None:
                return caveat
            # Whatever a fork cannot do, a process of its own may; it also says best what is wrong.
            self._server = None
            if self._debug:
                print(
                    f"{self._slot.label}: no fork of a process that has imported: {error}",
                    file=sys.stderr,
                )
        return self._launch(None)

    def _launch(self, server: ServerAddress | None) -> str:
        """Start a check process and wait until it is ready; see `open`."""
        self._process = CheckProcess(self._slot, self._opener, server, debug=self._debug)
        if self._is_ended:
            self._process.close()
            raise DeviceError("its worker was ended")
        try:
            return self._process.wait_ready()
        except (DeviceError, NotForked):
            self._process.close()
            raise

    def run(
        self,
        order: Order,
        transfer: Mapping[int, Sealed] | None = None,
        files: Mapping[int, Any] | None = None,
    ) -> BatchReport:
        """Run a batch, one record after the other, and return its report.

        `transfer` has what a device measured of the records, by index, for the stage BENCH; `files` has
        their captured files by index, None where the process reads them from the dump's folder. What
        this device measures in the stage DEVICE is kept for `hand_over`.

        A batch may come while another batch runs: it waits in the pipe of the process. If the batch
        before it broke the process, or the worker was halted, the report is empty; the driver knows
        that from the report before.
        """
        process = self._process
        assert process is not None, "open comes first"
        with self._turns.handing_in(order.turn) as counts:
            work = _work(order, transfer or {}, files)
            if work and counts and not self._halted.is_set():
                process.submit(work)
        with self._turns.running(order.turn) as counts:
            if not work:  # The device's worker has gone with what it measured.
                return BatchReport((), needs_device=tuple(each.index for each in order.payloads))
            if process.is_closed or not counts or self._halted.is_set():
                return BatchReport(())
            report, sealed = process.collect(
                work, order.limits_s, self._halted.is_set, budget_s=order.budget_s
            )
        if sealed:
            self._made[order.ticket] = sealed
        return report

    def hand_over(self, ticket: int, is_near: bool) -> Mapping[int, Sealed]:
        """Return what the device measured of a batch, by index: where the memory is if the bench worker
        `is_near`, on this machine, else the arrays for Ray to copy.

        The worker keeps the memory until `release`.
        """
        made = self._made[ticket]
        if is_near and CAN_LEND:
            return made
        return {index: sealed.for_others() for index, sealed in made.items()}

    def release(self, ticket: int) -> None:
        """Free the memory of a batch, once no bench reads it."""
        self._made.pop(ticket, None)

    def pulse(self) -> None:
        """Answer: the process is there (`runtime.actors.ActorPulses`)."""

    def halt(self) -> None:
        """Stop the batch that runs: `run` kills the process and returns what is finished."""
        self._halted.set()

    def close(self) -> None:
        """End the process, and start no other."""
        self._is_ended = True
        if self._process is not None:
            self._process.close()


def _work(
    order: Order, transfer: Mapping[int, Sealed], files: Mapping[int, Any] | None
) -> list[Work]:
    """Return the messages to the process; none where a bench lacks what the device measured."""
    if order.stage is Stage.BENCH and any(each.index not in transfer for each in order.payloads):
        return []
    return [
        Work(
            payload.index,
            payload,
            order.stage,
            threads,
            transfer.get(payload.index),
            None if files is None else files[payload.index],
            order.is_near,
        )
        for payload, threads in zip(order.payloads, order.threads, strict=True)
    ]


def _allow_descriptors() -> None:
    """Let this process have as many descriptors as it may: each record that waits for a bench takes one."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if CAN_LEND:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
