"""What devices have made for benches elsewhere, by the ticket of its batch; the driver's side.

Comes in: the workers that have it. Goes out: references for the workers that want it. Called by
`crew`. Nothing of it is here: it lies in Ray's object store, or, where all benches are on the
device's machine, stays with the device's worker, which lends it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class _Lender:
    worker: Any
    node_id: str


@dataclass(slots=True)
class Parcels:
    """The parcels that have not been forgotten.

    Those of a worker whose memory a bench could not get at go through the object store from then on.
    """

    _refs: dict[int, Any] = field(default_factory=dict)
    _lenders: dict[int, _Lender] = field(default_factory=dict)
    _refused: set[Any] = field(default_factory=set)

    def may_lend(self, worker: Any, node_id: str, bench_nodes: Iterable[str]) -> bool:
        """Return whether a device's worker on a node can lend to all bench workers, on theirs."""
        nodes = list(bench_nodes)
        return bool(nodes) and worker not in self._refused and all(n == node_id for n in nodes)

    def collect(self, ticket: int, worker: Any, node_id: str, *, lends: bool) -> None:
        """Take what a worker on a node has made of a batch, to be kept until it is forgotten."""
        if lends:
            self._lenders[ticket] = _Lender(worker, node_id)
            self._refs[ticket] = worker.lend.remote(ticket)
        else:
            self._refs[ticket] = worker.hand_over.remote(ticket)

    def reference(self, ticket: int, node_id: str) -> Any:
        """Return what a bench worker on a node takes as a parcel; None for the ticket 0.

        What was lent has to be handed over where it goes to another machine after all.
        """
        lender = self._lenders.get(ticket)
        if lender is not None and (lender.node_id != node_id or lender.worker in self._refused):
            self._refs[ticket] = lender.worker.hand_over.remote(ticket)
            del self._lenders[ticket]
        return self._refs[ticket] if ticket else None

    def refuse(self, ticket: int) -> None:
        """A bench worker could not get at what was lent: its lender is gone, or not to be reached."""
        lender = self._lenders.get(ticket)
        if lender is not None:
            self._refused.add(lender.worker)

    def forget(self, ticket: int) -> None:
        """Drop a parcel; one that is not known is ignored."""
        self._refs.pop(ticket, None)
        lender = self._lenders.pop(ticket, None)
        if lender is not None:
            lender.worker.release.remote(ticket)
