"""The actor on every device slot. It runs no API itself: a process of its own does, and this one
watches it.

Comes in: an `Order`. Goes out: a `BatchReport`, numbers and text only, and beside it what the device
made of records whose bench is to run elsewhere: lent to workers of this machine, or through Ray's
object store. An API that crashes or
hangs ends its process alone, so that what the batch had finished is kept, and the record that broke
it is known. A slot without a device runs benches only.
"""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.places.devices import pin_process
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.tensors.loans import Lent, allow_descriptors, borrow, lend
from ray_precheck.runtime.workers.messages import Sealed, Work
from ray_precheck.runtime.workers.process import CheckProcess
from ray_precheck.runtime.workers.turns import Turns
from ray_precheck.schema.casualty import BatchReport
from ray_precheck.schema.task import DeviceSlot

# A run that is over sooner gains nothing from a spare: its start takes up to 3 s of the worker's core.
SPARES_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Order:
    """A batch: what is to be done with its records, how long each may take, with how many threads
    its bench computes, and how long a bench may take. `is_near`: the bench of a device's half will
    be on this machine.

    `turn` is its number among those that were sent to this actor, from 1 on.
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
    """Has APIs checked on one device. `open` comes first, and again where a fresh process is wanted.

    `spares` processes are kept ready to take over at once.
    """

    # The threads that answer calls, by name, and which methods each answers: while a batch runs a
    # second thread takes in the next one, and a third answers the rest.
    THREADS: ClassVar[Mapping[str, tuple[int, tuple[str, ...]]]] = {
        "batches": (2, ("run",)),
        "control": (1, ("hand_over", "lend", "release", "halt")),
    }

    def __init__(
        self, slot: DeviceSlot, opener: Opener, spares: int, *, debug: bool = False
    ) -> None:
        self._slot = slot
        self._opener = opener
        self._debug = debug
        self._wanted_spares = spares
        self._process: CheckProcess | None = None
        self._spares: list[CheckProcess] = []
        self._made: dict[int, dict[int, Sealed]] = {}
        self._halted = threading.Event()
        self._turns = Turns()
        self._opened_at = 0.0
        pin_process(slot)
        allow_descriptors()

    def open(self, last_turn: int) -> str:
        """Have a process that has run nothing yet; a spare where there is one. Batches up to
        `last_turn` were sent for the process before, and are not run any more. Returns what limits
        the precision of the device, "" for nothing.

        Raises:
            DeviceError: it could not start, with the reason.
        """
        self._turns.forget(last_turn)
        if self._process is None:
            self._opened_at = time.monotonic()
        else:
            self._process.close()
            # Spares are for those that break, and this one may be the first to do so.
            self._opened_at = 0.0
        self._process = self._spares.pop(0) if self._spares else self._launch()
        caveat = self._process.wait_ready()
        self._keep_spares()
        return caveat

    def run(
        self,
        order: Order,
        parcel: Mapping[int, Lent] | None = None,
        files: Mapping[int, Any] | None = None,
    ) -> BatchReport:
        """Do a batch, one record after the other, each in its time.

        `parcel` is, for the bench's half, what a device made of the records, by index; `files` are
        the captured files of each, where they are not to be read from the dump's folder. What this
        device makes of records that it is to measure is kept for `hand_over` and `lend`.

        A batch may come while another one runs: it waits in the process's pipe, which then goes on
        with it at once. Where the one before broke the process, or the worker was told to end,
        nothing is done: whoever sent it knows by then.
        """
        process = self._process
        assert process is not None, "open comes first"
        with self._turns.handing_in(order.turn) as counts:
            work = self._work(order, parcel, files)
            if work is not None and counts and not self._halted.is_set():
                process.submit(work)
        with self._turns.running(order.turn) as counts:
            if work is None:
                return BatchReport((), refused=True)
            if process.is_closed or not counts or self._halted.is_set():
                return BatchReport(())
            report, sealed = process.collect(
                work, order.limits_s, self._halted.is_set, budget_s=order.budget_s
            )
            if report.casualty is not None:
                self._opened_at = 0.0
            self._keep_spares()
        if sealed:
            self._made[order.ticket] = sealed
        return report

    def _work(
        self,
        order: Order,
        parcel: Mapping[int, Lent] | None,
        files: Mapping[int, Any] | None,
    ) -> list[Work] | None:
        """Return what the process is to do; None where it cannot get at what was lent."""
        borrowed = borrow(parcel or {})
        if borrowed is None:
            return None
        return [
            Work(
                payload.index,
                payload,
                order.stage,
                threads,
                borrowed.get(payload.index),
                None if files is None else files[payload.index],
                order.is_near,
            )
            for payload, threads in zip(order.payloads, order.threads, strict=True)
        ]

    def hand_over(self, ticket: int) -> dict[int, Sealed]:
        """Give away what was made of a batch, by index: to Ray's object store, while the next batch
        runs."""
        return {index: sealed.for_others() for index, sealed in self._made.pop(ticket).items()}

    def lend(self, ticket: int) -> Mapping[int, Lent]:
        """Say how workers of this machine get at what was made of a batch, by index; it is kept until
        its `release`, or `hand_over`.
        """
        return {index: lend(sealed) for index, sealed in self._made[ticket].items()}

    def release(self, ticket: int) -> None:
        """Let go of what was lent: nobody reads it any more."""
        for sealed in self._made.pop(ticket, {}).values():
            if sealed.shared is not None:
                sealed.shared.give_back()

    def halt(self) -> None:
        """End the batch in flight: `run` returns what is finished."""
        self._halted.set()

    def close(self) -> None:
        """End all processes."""
        for process in [*self._spares, *filter(None, [self._process])]:
            process.close()
        self._spares, self._process = [], None

    def _launch(self) -> CheckProcess:
        return CheckProcess(self._slot, self._opener, debug=self._debug)

    def _keep_spares(self) -> None:
        if self._halted.is_set() or time.monotonic() - self._opened_at < SPARES_AFTER_S:
            return
        while len(self._spares) < self._wanted_spares:
            self._spares.append(self._launch())
