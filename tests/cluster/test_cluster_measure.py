"""The costs of Ray's messages that the simulation of large clusters takes are measured on what runs."""

from collections.abc import Iterator
from dataclasses import astuple

import pytest

from ray_precheck.runtime.places.cluster import Roster, living_nodes, open_cluster
from ray_precheck.runtime.ray_actors import RayActors
from scripts.simulate.account import Setup
from scripts.simulate.costs import draw_workload
from scripts.simulate.ray import measure_with
from scripts.simulate.world import World

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def actors(cluster_address: str) -> Iterator[RayActors]:
    with open_cluster(cluster_address, debug=False):
        yield RayActors(Roster(living_nodes(), "", print))


def test_every_message_costs_something_and_a_run_can_be_simulated_with_it(
    actors: RayActors,
) -> None:
    costs, waits = measure_with(actors, flights=(4, 32), rounds=20)
    assert set(waits) == {4, 32}
    # A busy machine may make the message of one record, or its record, look free, and never both.
    assert all(seconds >= 0 for seconds in astuple(costs))
    for seconds in (
        costs.wait_s + costs.wait_per_flight_s,
        costs.send_s + costs.send_per_record_s,
        costs.get_s + costs.get_per_record_s,
        costs.record_s + costs.record_per_record_s,
        costs.write_s + costs.write_per_record_s,
    ):
        assert 0 < seconds < 10
    account = World(draw_workload("20ms", 500, seed=1), Setup(4, costs=costs)).run()
    assert set(account.recorded) == {1}
    assert account.messages > 0
    assert account.driver_s > account.messages * costs.get_s
