"""Where a run may run: the nodes that are there, and the devices of theirs that it asks for.

Comes in: a `RunConfig` and the framework. Goes out: `Places`, and for as long as a stack is open the
cluster of --address or one of our own. Called by the session, before any file is made.
"""

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ray_precheck.config import RunConfig
from ray_precheck.runtime.devices import Node, choose_kind, local_node
from ray_precheck.runtime.environment import prepare_environment
from ray_precheck.runtime.nodes import require_same_package, version_table
from ray_precheck.runtime.placement import DeviceRequest, place_slots, usable_nodes
from ray_precheck.runtime.probe import PACKAGE


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run may run: what was asked for, and the nodes there were then, the driver's first.

    `most_on_a_node` is how many workers share a machine, None for as many as there are ids.
    """

    request: DeviceRequest
    nodes: list[Node]
    most_on_a_node: int | None


def find_places(config: RunConfig, framework: str, joined: ExitStack, *, show: bool) -> Places:
    """Join the cluster of --address, if there is one, until `joined` is closed; see what it has.

    Raises:
        DeviceError: a device that was asked for is not there.
        UsageError: no cluster answers, or a node has another version of this package.
    """
    here = local_node()
    nodes = open_nodes(config, joined, show=show) if config.address else [here]
    request = DeviceRequest.of(config, "cpu")
    usable = usable_nodes(request, nodes)
    # -d takes devices of this machine, which is the first; --devices those of any.
    asked = usable if isinstance(config.devices, str) else [n for n in usable if n is nodes[0]]
    request = replace(request, kind=choose_kind(config.device_type, framework, asked))
    slots = place_slots(request, nodes)
    require_same_package(here.versions.get(PACKAGE, ""), usable)
    table = version_table(usable)
    if table and show:
        print(table, file=sys.stderr, flush=True)
    most = max(Counter(slot.node_id for slot in slots).values())
    return Places(request, nodes, None if request.ids else most)


def open_nodes(config: RunConfig, opened: ExitStack, *, show: bool) -> list[Node]:
    """Start or join the cluster of a run until `opened` is closed; return its nodes."""
    prepare_environment(own_cluster=not config.address, debug=config.debug)
    # Imported here: Ray takes half a second that a wrong option should not cost.
    from ray_precheck.runtime.cluster import open_cluster

    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return opened.enter_context(open_cluster(config.address, debug=config.debug, say=say))
