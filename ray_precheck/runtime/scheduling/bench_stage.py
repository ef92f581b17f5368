"""The bench workers and their transfers: which workers are free, which transfers wait, and how many bytes
they have.

Comes in: transfers, which devices have made of records, and news of the bench workers. Goes out: the
worker for each transfer. Pure, a part of the scheduler and called by it alone. A record whose bench
breaks a bench worker has no crash counted: the scheduler has a device check it once more as a whole.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ray_precheck.runtime.scheduling.queue import bench_threads
from ray_precheck.runtime.scheduling.slots import START_ATTEMPTS
from ray_precheck.schema.task import Task

_TRANSFERS_EACH = 3
# A transfer whose benches take less than this may wait behind another such transfer, even if another
# worker gets free meanwhile.
_SHORT_S = 0.2


@dataclass(frozen=True, slots=True)
class Transfer:
    """Tasks that a device at `place` has run; `nbytes` are the bytes that wait in memory for their
    bench.

    `made_s` are the seconds that the device's side took to hand them over, `bench_s` the seconds
    that their benches are expected to take (finite if the transfer is to wait).
    """

    ticket: int
    place: str
    tasks: tuple[Task, ...]
    nbytes: int
    made_s: float = 0.0
    bench_s: float = math.inf

    @property
    def threads(self) -> int:
        """The number of bench workers whose cores its bench takes."""
        return max(bench_threads(task.cost_s) for task in self.tasks)


class BenchState(Enum):
    """The state of a bench worker; LENT: another bench worker computes with its core."""

    STARTING = "starting"
    READY = "ready"
    LENT = "lent"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class _BenchSlot:
    place: str
    state: BenchState = BenchState.STARTING
    failed_starts: int = 0
    # Its batches, the oldest first, by their tickets.
    transfers: dict[int, Transfer] = field(default_factory=dict)
    borrowed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BenchStage:
    """The bench workers by name, and their work; `places` gives the place of each.

    The transfers that wait, are promised or in work have at most `most_bytes`.
    """

    places: Mapping[str, str]
    most_bytes: int
    # The number of records that bench workers have.
    in_flight: int = field(init=False, default=0)
    _slots: dict[str, _BenchSlot] = field(init=False)
    # Kept up to date, so that an event does not take longer when there are more workers.
    _free: dict[str, None] = field(init=False, default_factory=dict)
    _usable: set[str] = field(init=False, default_factory=set)
    _at: Counter[str] = field(init=False, default_factory=Counter)
    _waiting: deque[Transfer] = field(init=False, default_factory=deque)
    _promised: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)
    _bytes: int = field(init=False, default=0)
    # The seconds that promised and waiting transfers are expected to take.
    _ahead_s: float = field(init=False, default=0.0)
    _transfers: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._slots = {}
        for name, place in self.places.items():
            self.add(name, place)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    @property
    def names(self) -> list[str]:
        """The names of the bench workers."""
        return list(self._slots)

    @property
    def has_living(self) -> bool:
        """Whether there is a bench worker that has not been given up."""
        return any(slot.state is not BenchState.GIVEN_UP for slot in self._slots.values())

    @property
    def is_empty(self) -> bool:
        """Whether no transfer waits, is promised or in work."""
        return self._transfers == 0

    @property
    def room_bytes(self) -> int:
        """How many bytes of a new transfer there is room for; 0 if no worker could take it."""
        return max(0, self.most_bytes - self._bytes) if self._usable else 0

    @property
    def backlog_s(self) -> float:
        """The seconds that each worker is expected to be busy with its share of the transfers that
        wait or are on their way, after its present one; infinite if there is no worker.
        """
        return self._ahead_s / len(self._usable) if self._usable else math.inf

    @property
    def is_full(self) -> bool:
        """Whether there are, for each worker on average, a transfer in work, one that waits and one that
        is on its way."""
        return self._transfers >= _TRANSFERS_EACH * len(self._usable)

    def _turn(self, name: str, state: BenchState) -> None:
        self._slots[name].state = state
        self._note(name)

    def _note(self, name: str) -> None:
        """Update `_free` and `_usable` after the state of a worker has changed."""
        slot = self._slots.get(name)
        if slot is not None and slot.state is BenchState.READY and not slot.transfers:
            self._free[name] = None
        else:
            self._free.pop(name, None)
        if slot is not None and slot.state in (BenchState.READY, BenchState.LENT):
            self._usable.add(name)
        else:
            self._usable.discard(name)

    def promise(self, ticket: int, tasks: Sequence[Task], bench_s: float) -> None:
        """Expect a transfer of tasks that are on their way to a device, whose benches take `bench_s`."""
        nbytes = sum(task.nbytes for task in tasks)
        self._promised[ticket] = nbytes, bench_s
        self._ahead_s += bench_s
        self._bytes += nbytes
        self._transfers += 1

    def withdraw(self, ticket: int) -> None:
        """Expect a transfer no longer."""
        if ticket in self._promised:
            nbytes, bench_s = self._promised.pop(ticket)
            self._bytes -= nbytes
            self._transfers -= 1
            self._lessen(bench_s)

    def _lessen(self, bench_s: float) -> None:
        """Subtract seconds; if nothing is ahead the sum is exactly 0."""
        is_empty = not (self._promised or self._waiting)
        self._ahead_s = 0.0 if is_empty else max(0.0, self._ahead_s - bench_s)

    def arrive(self, transfer: Transfer) -> None:
        """Take a transfer that was promised."""
        self.withdraw(transfer.ticket)
        self._enter(transfer)
        self._waiting.append(transfer)
        self._ahead_s += transfer.bench_s

    def _enter(self, transfer: Transfer) -> None:
        self._bytes += transfer.nbytes
        self._transfers += 1

    def _leave(self, transfer: Transfer) -> None:
        self._bytes -= transfer.nbytes
        self._transfers -= 1

    def next_assignment(self) -> tuple[str, Transfer] | None:
        """Choose the worker for the transfer that has waited longest; None if no worker can take it.

        A free worker comes first. A busy worker may be sent another transfer, which it fetches
        meanwhile, if the transfer is short, comes from another machine, or if there is a transfer for
        each worker.
        """
        if not self._waiting:
            return None
        transfer = self._waiting[0]
        near = (name for name in self._free if self._slots[name].place == transfer.place)
        chosen = next(near, "") or next(iter(self._free), "") or self._fetching(transfer)
        if not chosen:
            return None
        self._waiting.popleft()
        self._lessen(transfer.bench_s)
        self._lend(chosen, transfer.threads - 1)
        return chosen, transfer

    def _fetching(self, transfer: Transfer) -> str:
        """Return a worker with one transfer that can fetch this one meanwhile, "" for none."""
        is_short = transfer.bench_s < _SHORT_S
        # If there is a transfer for each worker anyway, no other worker would have this one sooner.
        is_ample = len(self._waiting) >= len(self._usable)
        is_far = self._at[transfer.place] < len(self._slots)
        if transfer.threads > 1 or not (is_short or is_far or is_ample):
            return ""
        chosen, soonest_s = "", math.inf
        for name, slot in self._slots.items():
            if slot.state is not BenchState.READY or len(slot.transfers) != 1:
                continue
            (first,) = slot.transfers.values()
            is_right = (
                is_ample or slot.place != transfer.place or (is_short and first.bench_s < _SHORT_S)
            )
            if is_right and (not chosen or first.bench_s < soonest_s):
                chosen, soonest_s = name, first.bench_s
        return chosen

    def _lend(self, borrower: str, count: int) -> None:
        """Keep the cores of other workers free for a transfer that computes with several threads."""
        place = self._slots[borrower].place
        for name in list(self._free) if count else []:
            if len(self._slots[borrower].borrowed) >= count:
                return
            if name != borrower and self._slots[name].place == place:
                self._turn(name, BenchState.LENT)
                self._slots[borrower].borrowed.append(name)

    def assign(self, name: str, ticket: int, transfer: Transfer) -> None:
        """Note that a worker has got a transfer, under the ticket of a batch."""
        self.in_flight += len(transfer.tasks)
        self._slots[name].transfers[ticket] = transfer
        self._note(name)

    def take(self, name: str, ticket: int, tasks: tuple[Task, ...]) -> None:
        """Note that a worker has got whole records, which no device has run."""
        transfer = Transfer(0, self._slots[name].place, tasks, 0)
        self._enter(transfer)
        self.assign(name, ticket, transfer)

    def busy(self) -> list[str]:
        """Return the workers that have a transfer."""
        return [name for name, slot in self._slots.items() if slot.transfers]

    def with_room(self, ahead: Collection[str]) -> list[str]:
        """Return the workers that may take a batch: those without a batch, and of those in `ahead` the
        ones with a single batch, too."""
        if not ahead:
            return list(self._free)
        return [
            name
            for name, slot in self._slots.items()
            if slot.state is BenchState.READY and len(slot.transfers) <= (name in ahead)
        ]

    def done(self, name: str, ticket: int) -> Transfer | None:
        """Note that a worker has finished a batch; return its transfer, None if it has no such batch."""
        slot = self._slots.get(name)
        transfer = slot.transfers.pop(ticket, None) if slot is not None else None
        if slot is None or transfer is None:
            return None
        self._leave(transfer)
        self.in_flight -= len(transfer.tasks)
        if all(left.threads == 1 for left in slot.transfers.values()):
            self._give_back(slot)
        self._note(name)
        return transfer

    def _give_back(self, slot: _BenchSlot) -> None:
        for name in slot.borrowed:
            lender = self._slots.get(name)
            if lender is not None and lender.state is BenchState.LENT:
                self._turn(name, BenchState.READY)
        slot.borrowed.clear()

    def ready(self, name: str) -> None:
        """Note that a worker has started."""
        slot = self._slots[name]
        if slot.state is BenchState.STARTING:
            slot.failed_starts = 0
            self._turn(name, BenchState.READY)

    def is_starting(self, name: str) -> bool:
        """Return whether a worker is starting."""
        return self._slots[name].state is BenchState.STARTING

    def start_failed(self, name: str) -> bool:
        """Note that a worker could not start; return whether to try again."""
        slot = self._slots[name]
        slot.failed_starts += 1
        if slot.failed_starts < START_ATTEMPTS:
            return True
        self._turn(name, BenchState.GIVEN_UP)
        return False

    def lose(self, name: str) -> dict[int, Transfer]:
        """Note that a worker is gone and a new one starts; return its batches by their tickets."""
        slot = self._slots[name]
        transfers, slot.transfers = slot.transfers, {}
        for transfer in transfers.values():
            self._leave(transfer)
            self.in_flight -= len(transfer.tasks)
        self._give_back(slot)
        for other in self._slots.values():
            # Once it has started again it may be lent to another worker.
            other.borrowed = [lender for lender in other.borrowed if lender != name]
        self._turn(name, BenchState.STARTING)
        return transfers

    def lose_waiting(self, place: str | None = None) -> list[Transfer]:
        """Drop and return the transfers that wait: all of them, or those at a place that is gone."""
        lost = [transfer for transfer in self._waiting if place in (None, transfer.place)]
        for transfer in lost:
            self._waiting.remove(transfer)
            self._lessen(transfer.bench_s)
            self._leave(transfer)
        return lost

    def add(self, name: str, place: str) -> None:
        """Add a bench worker on a core that has joined."""
        self._slots[name] = _BenchSlot(place)
        self._at[place] += 1

    def remove(self, name: str) -> dict[int, Transfer]:
        """Note that a worker is gone with its machine; return its batches by their tickets."""
        if name not in self._slots:
            return {}
        transfers = self.lose(name)
        self._at[self._slots.pop(name).place] -= 1
        self._note(name)
        return transfers
