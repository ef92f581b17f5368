"""The driver's list of parcels: the tensors of devices for bench workers, by the ticket of the batch.

Comes in: the workers that hold a parcel. Goes out: references for the bench workers that need it.
Called by `crew`. The tensors themselves do not pass through the driver: they lie in Ray's object
store, or, where all bench workers are on the device's machine, stay with the device's worker, which
lends them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.runtime.actors import Actors


@dataclass(frozen=True, slots=True)
class _Lender:
    worker: Any
    node_id: str


@dataclass(slots=True)
class Parcels:
    """The parcels that have not been forgotten.

    If a bench worker could not open the memory of a device's worker, that worker's later parcels go
    through the object store.
    """

    actors: Actors
    _refs: dict[int, Any] = field(default_factory=dict)
    _lenders: dict[int, _Lender] = field(default_factory=dict)
    _refused: set[Any] = field(default_factory=set)

    def may_lend(self, worker: Any, node_id: str, bench_nodes: Iterable[str]) -> bool:
        """Return whether a device's worker on a node can lend to all bench workers, on theirs."""
        nodes = list(bench_nodes)
        return bool(nodes) and worker not in self._refused and all(n == node_id for n in nodes)

    def collect(self, ticket: int, worker: Any, node_id: str, *, lends: bool) -> None:
        """Take the parcel that a worker on a node has made of a batch, and keep it until
        `forget`."""
        if lends:
            self._lenders[ticket] = _Lender(worker, node_id)
            self._refs[ticket] = self.actors.call(worker, "lend", ticket)
        else:
            self._refs[ticket] = self.actors.call(worker, "hand_over", ticket)

    def reference(self, ticket: int, node_id: str) -> Any:
        """Return the reference by which a bench worker on a node gets a parcel; None for the ticket
        0.

        A lent parcel is moved to the object store if the bench worker is on another machine after
        all.
        """
        lender = self._lenders.get(ticket)
        if lender is not None and (lender.node_id != node_id or lender.worker in self._refused):
            self._refs[ticket] = self.actors.call(lender.worker, "hand_over", ticket)
            del self._lenders[ticket]
        return self._refs[ticket] if ticket else None

    def refuse(self, ticket: int) -> None:
        """Note that a bench worker could not open a lent parcel: the lender is gone or cannot be
        reached."""
        lender = self._lenders.get(ticket)
        if lender is not None:
            self._refused.add(lender.worker)

    def forget(self, ticket: int) -> None:
        """Drop a parcel; an unknown ticket is ignored."""
        self._refs.pop(ticket, None)
        lender = self._lenders.pop(ticket, None)
        if lender is not None:
            self.actors.call(lender.worker, "release", ticket)
