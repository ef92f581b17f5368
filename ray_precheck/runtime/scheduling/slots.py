"""What the scheduler knows of the device slots.

Pure, a part of the scheduler and called by it alone. Counts are kept up to date, so that no event
costs more where there are more devices.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ray_precheck.runtime.scheduling.commands import SendBatch
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.task import Task


class SlotState(Enum):
    """Where the worker of a slot is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class Slot:
    """`place` is what dies together: slots on the CPU of one machine share it, devices do not.

    `moves_to` is the place of its next worker, None where that stays. `fresh`: nothing has run on the
    worker but, at most, the one record that it has now. `following` is the batch that its worker has
    too, and begins as soon as this one is done. `suspect` is what the slot will run as soon as its
    worker is fresh, `reserved` the batch after this one, whose files are on their way.
    """

    place: str
    moves_to: str | None = None
    state: SlotState = SlotState.STARTING
    fresh: bool = False
    ticket: int = 0
    stage: Stage = Stage.CHECK
    batch: dict[int, Task] = field(default_factory=dict)
    following: SendBatch | None = None
    suspect: Task | None = None
    reserved: SendBatch | None = None
    failed_starts: int = 0


@dataclass(slots=True)
class SlotTable:
    """The slots by their labels, at their `places`.

    `kept` counts what slots keep for later: suspects, and batches that are reserved.
    """

    places: Mapping[str, str]
    kept: int = 0
    in_batches: int = 0
    _slots: dict[str, Slot] = field(init=False)
    _idle: dict[str, None] = field(init=False, default_factory=dict)
    _reserving: dict[str, None] = field(init=False, default_factory=dict)
    _living: int = field(init=False)

    def __post_init__(self) -> None:
        self._slots = {name: Slot(place) for name, place in self.places.items()}
        self._living = len(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __getitem__(self, name: str) -> Slot:
        return self._slots[name]

    def get(self, name: str) -> Slot | None:
        """Return a slot, None for a name that is none."""
        return self._slots.get(name)

    def keep_only(self, names: Iterable[str]) -> None:
        """Leave out all others."""
        self._slots = {name: self._slots[name] for name in names}
        self._living = len(self._slots)

    def add(self, name: str, place: str) -> None:
        """A device has joined."""
        self._slots[name] = Slot(place)
        self._living += 1

    def enter(self, name: str, state: SlotState) -> None:
        """A slot gets into a state."""
        slot = self._slots[name]
        self._living += (slot.state is SlotState.GIVEN_UP) - (state is SlotState.GIVEN_UP)
        slot.state = state
        if state is SlotState.IDLE:
            self._idle[name] = None
        else:
            self._idle.pop(name, None)

    @property
    def has_living(self) -> bool:
        """Whether any has not been given up."""
        return self._living > 0

    def idle(self) -> list[str]:
        """Return the slots whose worker waits."""
        return list(self._idle)

    def busy(self) -> list[str]:
        """Return the slots whose worker has a batch."""
        return [name for name, slot in self._slots.items() if slot.state is SlotState.BUSY]

    def is_elsewhere(self, place: str) -> bool:
        """Return whether there is a slot at another place that has not been given up."""
        return any(
            slot.place != place and slot.state is not SlotState.GIVEN_UP
            for slot in self._slots.values()
        )

    def give(self, name: str, batch: SendBatch) -> None:
        """A worker has a batch now."""
        slot = self._slots[name]
        self.enter(name, SlotState.BUSY)
        self._put_in_work(slot, batch)
        self.in_batches += len(batch.tasks)
        # Whoever shares its worker with others cannot be convicted there.
        slot.fresh = slot.fresh and len(slot.batch) == 1

    def _put_in_work(self, slot: Slot, batch: SendBatch) -> None:
        slot.ticket, slot.stage = batch.ticket, batch.stage
        slot.batch = {task.index: task for task in batch.tasks}

    def take(self, name: str) -> dict[int, Task]:
        """Take the batch of a worker."""
        slot = self._slots[name]
        batch, slot.batch = slot.batch, {}
        self.in_batches -= len(batch)
        return batch

    def follow(self, name: str, batch: SendBatch) -> None:
        """A worker has another batch behind the one that it works on."""
        self._slots[name].following = batch
        self.in_batches += len(batch.tasks)

    def advance(self, name: str) -> bool:
        """The batch of a worker was taken: it works on the one behind it; False where there is none."""
        slot = self._slots[name]
        batch, slot.following = slot.following, None
        if batch is not None:
            self._put_in_work(slot, batch)
        return batch is not None

    def recall(self, name: str) -> SendBatch | None:
        """Take the batch that is behind the one in work; None where there is none."""
        slot = self._slots[name]
        batch, slot.following = slot.following, None
        self.in_batches -= 0 if batch is None else len(batch.tasks)
        return batch

    def keep_suspect(self, name: str, suspect: Task | None) -> Task | None:
        """Keep a suspect for a slot; return the one that was kept."""
        slot = self._slots[name]
        before, slot.suspect = slot.suspect, suspect
        self.kept += (suspect is not None) - (before is not None)
        return before

    def reserve(self, name: str, batch: SendBatch | None) -> SendBatch | None:
        """Keep a batch for a slot; return the one that was kept."""
        slot = self._slots[name]
        before, slot.reserved = slot.reserved, batch
        self.kept += (batch is not None) - (before is not None)
        if batch is None:
            self._reserving.pop(name, None)
        else:
            self._reserving[name] = None
        return before

    def with_reserve(self) -> str:
        """Return a slot for which a batch is kept, "" for none."""
        return next(iter(self._reserving), "")
