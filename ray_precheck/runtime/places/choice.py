"""The nodes and devices on which a run may run.

Comes in: the options of a job and the framework. Goes out: `Places`, and for as long as a stack is open the
cluster of --address or one of our own. Called by the session, before any file is made.

Also here: the environment variables that Ray reads when it is imported, and the one that passes --debug on.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from ray_precheck.options.shared import CoreJobOptions, JobOptions
from ray_precheck.private_parts import DEBUG, MATCH_LEVEL
from ray_precheck.runtime.places.devices import (
    Node,
    choose_kind,
    local_node,
    require_plugins,
    usable_cores,
)
from ray_precheck.runtime.places.placement import (
    DeviceRequest,
    place_slots,
    require_same_package,
    usable_nodes,
    version_table,
)
from ray_precheck.runtime.places.probe import PACKAGE
from ray_precheck.runtime.stop_signal import signals_held
from ray_precheck.schema.environment import Environment
from ray_precheck.schema.task import DeviceSlot

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray reports the failed start of a worker that is no longer wanted; we hide that.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # We report dead workers and nodes in one line each, so Ray's pages about them are hidden.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed|The node with node id|Raylet is terminated",
}
# The switch by which Ray takes the loopback address for its node, so that nothing listens on
# another one. (`_node_ip_address="127.0.0.1"` is translated back to the network's address.)
_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray itself refuses a cluster with another patch release of Python; what we send is read by any of them.
_PATCH_RELEASES = {MATCH_LEVEL: "minor"}
# Ray runs its workers at nice 15, after everything else on the machine.
_PRIORITY = {"RAY_worker_niceness": "0"}


def prepare_environment(*, own_cluster: bool, debug: bool) -> None:
    """Set the variables that Ray reads when it is imported, but for those that the user has set."""
    for name, value in {
        **({} if debug else _QUIET),
        **_PATCH_RELEASES,
        **({**_LOOPBACK_ONLY, **_PRIORITY} if own_cluster else {}),
    }.items():
        os.environ.setdefault(name, value)


@contextmanager
def passed_on(*, debug: bool) -> Iterator[None]:
    """Let this process and those that it starts tell what --debug tells, until the block ends."""
    if not debug or DEBUG in os.environ:
        yield
        return
    os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        os.environ.pop(DEBUG, None)


OnCores = TypeVar("OnCores", bound=CoreJobOptions)


@dataclass(frozen=True, slots=True)
class Places:
    """The devices that a run asks for, and the nodes at its start, the driver's first.

    `most_on_a_node` is how many workers share a machine, None for as many as there are ids; `slots`
    are the devices that were there then.
    `are_open`: the nodes are those of a cluster that is joined, not yet this machine alone.
    """

    request: DeviceRequest
    nodes: list[Node]
    most_on_a_node: int | None
    slots: Sequence[DeviceSlot]
    are_open: bool

    def environment(
        self, *, framework: str, rule: str, calls: int, dump: str, tests_dump: bool
    ) -> Environment:
        """Return the facts that the closing lines show, with those about devices and nodes filled in."""
        used = {slot.node_id for slot in self.slots}
        kind = self.request.kind
        names = {node.names.get(kind, "") for node in self.nodes if node.node_id in used}
        return Environment(
            framework=framework,
            kind=kind,
            device_names=tuple(sorted(names - {""})),
            devices=len(self.slots),
            nodes=len(used),
            rule=rule,
            calls=calls,
            dump=dump,
            tests_dump=tests_dump,
            versions=self.nodes[0].versions,
        )


class Cluster:
    """The cluster of a run, or of several: opened when it is first needed, until `opened` is closed."""

    def __init__(self, config: JobOptions, opened: ExitStack) -> None:
        self._config = config
        self._opened = opened
        self._nodes: list[Node] = []

    @property
    def is_local(self) -> bool:
        """Whether nobody has asked for a Ray, and none has been opened: a run may do without."""
        return not (self._config.address or self._nodes or ray_is_running())

    def nodes(self, *, show: bool) -> list[Node]:
        """Return the nodes there are now, the driver's first.

        Raises:
            UsageError: no cluster answers.
        """
        if not self._nodes:
            self._nodes = open_nodes(self._config, self._opened, show=show)
        elif self._config.joins:
            # Ray is imported by then.
            from ray_precheck.runtime.places.cluster import Roster

            self._nodes = Roster(self._nodes, "", _sayer(show)).answers()
        return self._nodes


def on_cores(config: OnCores) -> OnCores:
    """Return the configuration with processor cores as its slots: those that were named, or as many as this
    process may use."""
    devices = config.devices if config.devices else tuple(range(usable_cores()))
    return replace(config, devices=devices, device_type="cpu", bench_workers=0)


def find_places(
    config: JobOptions, framework: str, cluster: Cluster, *, show: bool, device_runs: bool = True
) -> Places:
    """Join the cluster of --address, or the Ray that runs here, if there is one; find its devices.

    `device_runs` is False where captured results are tested, for which no device is needed.

    Raises:
        DeviceError: a device that was asked for is not there, or its framework cannot use it.
        UsageError: no cluster answers, a node has another version of this package, or this process
            has a Ray of its own that cannot be used.
    """
    here = local_node()
    joins = config.joins or ray_is_running()
    nodes = cluster.nodes(show=show) if joins else [here]
    request = DeviceRequest.of(config, "cpu")
    usable = usable_nodes(request, nodes)
    # -d takes devices of this machine, which is the first; --devices those of any.
    asked = usable if isinstance(config.devices, str) else [n for n in usable if n is nodes[0]]
    kind = choose_kind(config.device_type, framework, asked, device_runs=device_runs)
    request = replace(request, kind=kind)
    slots = place_slots(request, nodes)
    if device_runs:
        used = {slot.node_id for slot in slots}
        require_plugins(kind, framework, (node for node in nodes if node.node_id in used))
    require_same_package(here.versions.get(PACKAGE, ""), usable)
    table = version_table(usable, here)
    if table and show:
        print(table, file=sys.stderr, flush=True)
    most = max(Counter(slot.node_id for slot in slots).values())
    return Places(request, nodes, None if request.ids else most, slots, joins)


def ray_is_running() -> bool:
    """Return whether this process has started or joined a Ray already, by `ray.init`."""
    ray = sys.modules.get("ray")
    # The namespace of a folder called ray is no Ray.
    return bool(getattr(ray, "is_initialized", lambda: False)())


def open_nodes(config: JobOptions, opened: ExitStack, *, show: bool) -> list[Node]:
    """Start or join the cluster of a run until `opened` is closed; return its nodes."""
    prepare_environment(own_cluster=not config.joins, debug=config.debug)
    opened.enter_context(passed_on(debug=config.debug))
    # Imported here: Ray takes half a second that a wrong option should not cost.
    from ray_precheck.runtime.places.cluster import open_cluster

    with signals_held():
        return opened.enter_context(
            open_cluster(
                config.address if config.joins else "", debug=config.debug, say=_sayer(show)
            )
        )


def _sayer(show: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return say
