"""Who has what devices have made, and how it is asked for."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.tensors.parcels import Parcels

pytestmark = pytest.mark.unit


@dataclass(eq=False)
class Worker:
    """Stands for an actor: notes what it is asked for."""

    asked: list[tuple[str, int]] = field(default_factory=list)


class Calls:
    """Calls workers; the answer is what was asked for."""

    def call(self, handle: Worker, method: str, *args: Any) -> tuple[str, int]:
        (ticket,) = args
        handle.asked.append((method, ticket))
        return method, ticket


def no_parcels() -> Parcels:
    return Parcels(cast("Actors", Calls()))


def lent(worker: Worker) -> Parcels:
    parcels = no_parcels()
    parcels.collect(7, worker, "m0", lends=True)
    return parcels


def test_what_is_lent_stays_with_its_worker_until_it_is_forgotten() -> None:
    worker = Worker()
    parcels = lent(worker)
    assert parcels.reference(7, "m0") == ("lend", 7)
    parcels.forget(7)
    parcels.forget(7)
    assert worker.asked == [("lend", 7), ("release", 7)]


def test_what_is_in_the_object_store_needs_no_release() -> None:
    worker, parcels = Worker(), no_parcels()
    parcels.collect(7, worker, "m0", lends=False)
    assert parcels.reference(7, "m1") == ("hand_over", 7)
    parcels.forget(7)
    assert worker.asked == [("hand_over", 7)]


def test_what_was_lent_and_goes_to_another_machine_is_handed_over_once() -> None:
    worker = Worker()
    parcels = lent(worker)
    assert parcels.reference(7, "m1") == ("hand_over", 7)
    # Whoever has it now, it is in the object store.
    assert parcels.reference(7, "m0") == ("hand_over", 7)
    parcels.forget(7)
    assert worker.asked == [("lend", 7), ("hand_over", 7)]


def test_without_a_parcel_there_is_no_reference() -> None:
    assert no_parcels().reference(0, "m0") is None


@pytest.mark.parametrize(
    ("nodes", "may"),
    [(["m0"], True), (["m0", "m0"], True), (["m0", "m1"], False), (["m1"], False), ([], False)],
)
def test_only_where_all_benches_are_on_its_machine_a_worker_lends(
    nodes: list[str], may: bool
) -> None:
    assert no_parcels().may_lend(Worker(), "m0", nodes) is may


def test_a_lender_that_was_refused_lends_no_more_and_its_successor_does() -> None:
    worker, other = Worker(), Worker()
    parcels = lent(worker)
    parcels.collect(8, worker, "m0", lends=True)
    parcels.refuse(7)
    assert not parcels.may_lend(worker, "m0", ["m0"])
    assert parcels.may_lend(other, "m0", ["m0"])
    # What waits of it is not lent in vain, either.
    assert parcels.reference(8, "m0") == ("hand_over", 8)


def test_a_refusal_of_what_is_not_lent_changes_nothing() -> None:
    worker, parcels = Worker(), no_parcels()
    parcels.collect(7, worker, "m0", lends=False)
    parcels.refuse(7)
    parcels.refuse(0)
    assert parcels.may_lend(worker, "m0", ["m0"])
