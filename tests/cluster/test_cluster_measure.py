"""The costs of Ray's messages that the simulation of large clusters takes are measured on what runs."""

from collections.abc import Iterator

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
    for seconds in (costs.wait_s, costs.send_s, costs.get_s, costs.record_s, costs.write_s):
        assert 0 < seconds < 10
    account = World(draw_workload("20ms", 500, seed=1), Setup(4, costs=costs)).run()
    assert set(account.recorded) == {1}
    assert account.driver_s > account.messages * costs.get_s > 0
