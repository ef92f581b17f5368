"""The object store of a simulated run: transfers of devices.

Comes in: the scheduler's commands, as `runtime/crew.py` carries them out. Goes out: `Broken` where a
transfer is sent that is not there, too many bytes are on their way, or something is left at the end.
"""

from dataclasses import dataclass, field

from ray_precheck.runtime.scheduling.commands import SendBatch
from ray_precheck.schema.task import MeasuredTask, Task
from scripts.histories.rules import require

# A bench that takes less is not worth its way to another process.
_LEAST_SPLIT_S = 2e-3


@dataclass(frozen=True, slots=True)
class Made:
    """The transfer that a device on a node has made of tasks."""

    node: str
    tasks: tuple[Task, ...]


@dataclass(slots=True)
class Transfers:
    """The transfers that devices make, or are going to make, by the ticket of their batch.

    They never have more than `most_bytes` together. `working` are the transfers that a bench worker has.
    """

    most_bytes: int
    made: dict[int, Made] = field(default_factory=dict)
    working: set[int] = field(default_factory=set)
    _bytes: dict[int, int] = field(default_factory=dict)

    def promise(self, batch: SendBatch) -> None:
        """Expect the transfer of a device that is sent its half of a batch."""
        tasks = batch.tasks
        require(
            all(task.cost_s > _LEAST_SPLIT_S for task in tasks), "a record is too small to split"
        )
        self._bytes[batch.ticket] = sum(task.nbytes for task in tasks)
        total = sum(self._bytes.values())
        require(total <= self.most_bytes, f"{total} bytes are on their way to benches")

    def arrive(self, batch: SendBatch, node: str, measured: tuple[MeasuredTask, ...]) -> None:
        """Keep the transfer of a device that has done its half."""
        nbytes = {each.index: each.nbytes for each in measured}
        tasks = tuple(task for task in batch.tasks if task.index in nbytes)
        self.made[batch.ticket] = Made(node, tasks)
        self._bytes[batch.ticket] = sum(nbytes.values())

    def take(self, batch: SendBatch) -> Made:
        """Hand a transfer to a bench worker that is sent the other half of a batch."""
        require(batch.transfer in self.made, "a bench is sent what no device has made")
        require(batch.transfer not in self.working, "two benches are sent the same")
        made = self.made[batch.transfer]
        require(batch.tasks == made.tasks, "a bench is sent other records than were made")
        self.working.add(batch.transfer)
        return made

    def forget(self, ticket: int) -> tuple[Task, ...]:
        """Drop the transfer of a ticket, or the promise of one; return the tasks that waited."""
        require(ticket not in self.working, "what a bench works on is forgotten")
        self._bytes.pop(ticket, None)
        made = self.made.pop(ticket, None)
        return () if made is None else made.tasks

    def waiting(self) -> set[int]:
        """Return the records that wait for a bench."""
        idle = [made for ticket, made in self.made.items() if ticket not in self.working]
        return {task.index for made in idle for task in made.tasks}

    def nodes(self) -> set[str]:
        """Return the nodes on which transfers wait for a bench."""
        return {made.node for t, made in self.made.items() if made.tasks and t not in self.working}

    def count_waiting(self) -> int:
        """Return how many transfers wait for a bench."""
        return sum(1 for t, made in self.made.items() if made.tasks and t not in self.working)

    def is_waiting(self) -> bool:
        """Return whether any transfer waits for a bench."""
        return bool(self.nodes())
