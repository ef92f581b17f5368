"""The Ray cluster of a run: one of our own on this machine, or a running one.

Comes in: an address or "". Goes out: the nodes, the driver's first. Called by the session, and by
the driver, which asks for nodes that have joined or left. Our own cluster listens on loopback
alone, asks for a token that only this user can read, and leaves no process and no file behind.

Also here: a cluster of another Ray or another Python, which Ray does not let this process join.

A Ray of a run's own that starts only what the run needs. Ray's head starts an autoscaler, a dashboard and a
reader of its workers' logs too, three Python processes that took a second of the wait for a run and 1.5 s
of processor time (measured, Ray 2.60). Ray has no public switch for them, so this module uses its private
parts. A Ray with other ones starts whole.
"""

import contextlib
import logging
import os
import re
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck import private_parts
from ray_precheck.errors import StoppedError, UsageError
from ray_precheck.foreign import caught
from ray_precheck.private_parts import MATCH_LEVEL
from ray_precheck.processes import descendants, job_path, python_path
from ray_precheck.runtime.places import probe
from ray_precheck.runtime.places.devices import (
    RAY_RESOURCES,
    Node,
    asked_facts,
    local_node,
    visible_devices,
)
from ray_precheck.runtime.places.placement import has_other_package, version_differences
from ray_precheck.runtime.places.scratch import scratch_folder

_PARTS = ("start_monitor", "start_api_server", "start_log_monitor", "start_ray_processes")
_LOOK_S = 0.02
# Ray goes on to wait by itself, so this need not be long enough for a node that is in trouble.
_LONGEST_WAIT_S = 5.0
# Its inner parts have no contract.
_ANOTHER_RAY = (AttributeError, KeyError, TypeError)


@contextmanager
def lean_head(*, reads_logs: bool) -> Iterator[None]:
    """Let `ray.init` start no autoscaler and no dashboard, and the reader of the workers' output only if
    `reads_logs`. Not for two threads at a time."""
    module = private_parts.find(private_parts.NODE)
    whole = getattr(module, "Node", None)
    if module is None or not all(hasattr(whole, part) for part in _PARTS):
        yield
        return
    module.Node = _lean(whole, reads_logs)
    try:
        yield
    finally:
        module.Node = whole


def _lean(whole: Any, reads_logs: bool) -> Any:
    """Return Ray's class of a node with the parts left out."""

    class LeanNode(whole):  # type: ignore[misc]
        def start_monitor(self) -> None:
            """Start no autoscaler: a cluster of one run asks no cloud for machines."""

        def start_api_server(self, **options: Any) -> None:
            """Start no dashboard: only this run can reach its cluster."""

        def start_log_monitor(self) -> None:
            if reads_logs:
                super().start_log_monitor()

        def start_ray_processes(self) -> None:
            super().start_ray_processes()
            _await_node(self.gcs_address)

        def kill_all_processes(self, **options: Any) -> None:
            """End Ray's processes at once: they do not hear SIGTERM (`stop_signal.signals_held`), for which
            Ray itself waits a second each."""
            with contextlib.suppress(*_ANOTHER_RAY):
                started = [
                    each.process.pid for kind in self.all_processes.values() for each in kind
                ]
                for pid in [pid for top in started for pid in (top, *descendants(top))]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            super().kill_all_processes(**options)

    return LeanNode


def _await_node(gcs_address: str) -> None:
    """Wait until the node has told the cluster's table that it is there, which takes 0.6 s.

    Ray itself looks once a second. If the node fails, Ray reports it.
    """
    until = time.monotonic() + _LONGEST_WAIT_S
    with contextlib.suppress(*_ANOTHER_RAY, RayError, RuntimeError):
        state = private_parts.find(private_parts.NODE_TABLE)
        options = private_parts.find(private_parts.CLIENT_OPTIONS)
        if state is None or options is None:
            return
        table = state()
        table._initialize_global_state(options(gcs_address))
        while time.monotonic() < until and not any(e["Alive"] for e in table.node_table()):
            time.sleep(_LOOK_S)


# Ray's text has a pair of these lines for the cluster, then a pair for this process.
_VERSIONS = re.compile(r"Ray: *(\S+)\s+Python: *(\S+)")


def version_refusal(address: str, text: str) -> str:
    """Return why a cluster of other versions cannot be joined, with both versions of each.

    `text` is Ray's own; "" is returned where it does not tell of other versions.
    """
    if "Version mismatch" not in text:
        return ""
    found = _VERSIONS.findall(text)
    if len(found) != 2:
        return (
            f"the Ray cluster at --address {address} refuses this process: {' '.join(text.split())}"
        )
    (ray, python), (own_ray, own_python) = found
    theirs, own = _minor(python), _minor(own_python)
    if ray != own_ray:
        rule = "the same Ray on all nodes"
        remedy = f"install ray=={ray} here, or start the cluster with Ray {own_ray} on all nodes"
        if theirs != own:
            rule = "the same Ray and the same minor version of Python on all nodes"
            remedy = (
                f"run ray-precheck in an environment with Python {theirs} and Ray {ray}, or start the"
                f" cluster with Python {own} and Ray {own_ray} on all nodes"
            )
    elif theirs != own:
        rule = "the same minor version of Python on all nodes"
        remedy = (
            f"run ray-precheck in an environment with Python {theirs}, or start the cluster with"
            f" Python {own} on all nodes"
        )
    else:
        rule, remedy = "the same Python", f"set {MATCH_LEVEL}=minor to take another patch release"
        if os.environ.get(MATCH_LEVEL) == "minor":  # Ray 2.40, for one, does not read it.
            rule = "the same patch release of Python, as this Ray takes no other"
            remedy = f"run ray-precheck in an environment with Python {python}"
    return (
        f"the head of the Ray cluster at --address {address} has Ray {ray} and Python {python}, but"
        f" this node ({socket.gethostname()}) has Ray {own_ray} and Python {own_python}, and Ray needs"
        f" {rule}; {remedy}"
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


_ANSWER_TIMEOUT_S = 10.0
# How long to wait for the facts of a node, which starts a process to find them: 1 to 5 s (measured).
PROBE_TIMEOUT_S = 30.0
_AUTH_MODE = "RAY_AUTH_MODE"
# The fields of a node that Ray tells, of a Ray that this process has started.
_OF_RAY = ("node_id", "address", "store_bytes", "hostname", "labels")
# The size of Ray's object store, which holds device outputs that wait for their bench. It takes
# shared memory only as it fills.
_LEAST_STORE_BYTES, _MOST_STORE_BYTES = 128 << 20, 4 << 30
# Below the folder that Ray is given, with the longest number of a process; what the kernel takes (unix(7)).
_LONGEST_SOCKET = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_MOST_SOCKET_BYTES = 107
# What Ray needs to start: the least store, and some hundred threads on a machine with many cores.
_LIMITS = (
    ("the bytes of a file", resource.RLIMIT_FSIZE, _LEAST_STORE_BYTES),
    ("processes and threads", resource.RLIMIT_NPROC, 1024),
)
_SHARED_MEMORY = "/dev/shm"
_SHARED_MEMORY_SHARE = 0.3


def _print(line: str) -> None:
    print(line, file=sys.stderr)


@contextmanager
def open_cluster(
    address: str, *, debug: bool, say: Callable[[str], None] = _print
) -> Iterator[list[Node]]:
    """Start Ray here, or join the cluster at `address`; yields its nodes, the driver's first.

    A Ray that this process has started or joined before is used as it is, and left running.
    `say` is told which nodes of a cluster that was joined are left out, because they do not answer.

    Raises:
        UsageError: no cluster answers at the address, or the Ray of this process cannot be used.
    """
    if ray.is_initialized():
        yield _borrow(address, say)
    elif address:
        yield from _join(address, debug, say)
    else:
        yield from _start(debug)


def _start(debug: bool) -> Iterator[list[Node]]:
    with scratch_folder() as folder:
        yield from _start_in(folder, debug)


def _start_in(folder: Path, debug: bool) -> Iterator[list[Node]]:
    token = folder / "token"
    # Ray lets everyone into the folder that it is given, so that must not be the private one.
    rays = folder / "r"
    rays.mkdir()
    _require_short(rays)
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    settings = {
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(rays),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": python_path(),
    }
    before = {name: os.environ.get(name) for name in (*settings, _AUTH_MODE)}
    os.environ.update(settings)
    # Ray reads the mode when it is imported; where it is not set, ray.init turns the token on.
    os.environ.pop(_AUTH_MODE, None)
    _forget_token()
    try:
        with lean_head(reads_logs=debug):
            _init(
                address="local",
                job_config=_job(),
                num_cpus=local_node().cores,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=_store_bytes(),
                log_to_driver=debug,
                logging_level=logging.INFO if debug else logging.ERROR,
                _temp_dir=str(rays),
            )
        here = local_node()
        # What Ray knows of its node, and what this process knows of the machine.
        yield [
            replace(here, **{name: getattr(node, name) for name in _OF_RAY})
            for node in living_nodes()
        ]
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _forget_token()


def _store_bytes() -> int:
    """Return the size of the object store: a share of the shared memory that is free."""
    try:
        state = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return _LEAST_STORE_BYTES
    share = int(_SHARED_MEMORY_SHARE * state.f_bavail * state.f_frsize)
    largest_file = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest_file != resource.RLIM_INFINITY:  # The store is a file.
        share = min(share, largest_file)
    return min(_MOST_STORE_BYTES, max(_LEAST_STORE_BYTES, share))


def _require_short(rays: Path) -> None:
    """Require that Ray can have its sockets below this folder.

    Raises:
        StoppedError: their paths would be too long.
    """
    length = len(os.fsencode(rays / _LONGEST_SOCKET))
    if length > _MOST_SOCKET_BYTES:
        raise StoppedError(
            f"Ray could not be started on this machine: the path of a socket may have {_MOST_SOCKET_BYTES}"
            f" bytes, and below TMPDIR, {tempfile.gettempdir()}, those of Ray have {length}; set TMPDIR to a"
            " folder with a shorter path, such as /tmp"
        )


def _forget_token() -> None:
    """Let Ray read its token again: it keeps the first for as long as the process lives."""
    loader = private_parts.find(private_parts.TOKEN_LOADER)
    if loader is not None:
        loader.instance().reset_cache()


class _JobPath(list[str]):
    """Where Ray's workers look first for modules: Ray would add the working directory, and the folder of the
    script that was started."""

    def extend(self, _: Iterable[str]) -> None:
        """Add nothing."""


def _job() -> Any:
    """Return the configuration of a job whose workers import the package of this process."""
    job = ray.job_config.JobConfig()
    if private_parts.find(private_parts.JOB_PATH) and hasattr(job, "_py_driver_sys_path"):
        job._py_driver_sys_path = _JobPath(job_path())
    return job


def _init(**options: Any) -> None:
    """Start Ray.

    Raises:
        StoppedError: it did not start.
    """
    # Ray raises Exception itself where a part of it does not start.
    _, error = caught(partial(ray.init, **options))
    if error is not None:
        _require_text(error)
        reason = str(error).strip().split("\n", maxsplit=1)[0].rstrip(".") or type(error).__name__
        raise StoppedError(
            f"Ray could not be started on this machine: {reason}{_limits()}"
        ) from None


def _limits() -> str:
    """Name the limits of this process that keep Ray from its start, "" where there are none."""
    found = [
        f"{what} to {most} (ulimit), of which Ray needs {needed}"
        for what, limit, needed in _LIMITS
        if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY and most < needed
    ]
    return f"; this shell limits {' and '.join(found)}" if found else ""


def _require_text(error: Exception) -> None:
    """Raise `UsageError` where Ray has stumbled over a path that is no UTF-8, which it cannot keep."""
    if isinstance(error, UnicodeEncodeError):
        raise UsageError(
            f"Ray takes no folder whose name is no UTF-8, in the command line or to start it in:"
            f" {error.object!r}; name it by a link whose name is UTF-8"
        ) from None


def _join(address: str, debug: bool, say: Callable[[str], None]) -> Iterator[list[Node]]:
    level = logging.INFO if debug else logging.ERROR
    try:
        _require_answer(address)
        _forget_token()
        ray.init(address=address, job_config=_job(), log_to_driver=debug, logging_level=level)
    except (ConnectionError, RuntimeError, ValueError) as error:
        ray.shutdown()  # A Ray that is refused for its version stays half joined.
        _require_text(error)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            version_refusal(address, str(error))
            or f"no Ray cluster answers at --address {address}: {reason}"
        ) from None
    try:
        yield _answering_nodes(f"--address {address}", say)
    finally:
        ray.shutdown()


def _borrow(address: str, say: Callable[[str], None]) -> list[Node]:
    """Return the nodes of the Ray that this process has already started or joined; we leave it
    running.

    Raises:
        UsageError: it is another one than that of `address`, is no driver's, or does not answer.
    """
    if ray.util.client.ray.is_connected():
        raise UsageError(
            "this process is connected through Ray Client (ray://), in which a run cannot reach its"
            " workers; call ray.shutdown() first, or start the run on a node of the cluster"
        )
    own = ray.get_runtime_context().gcs_address
    if address not in ("", "auto", own):
        raise UsageError(
            f"this process has a Ray already, at {own}, and --address names another one, {address};"
            " leave --address out to use it, or call ray.shutdown() first"
        )
    return _answering_nodes(f"the Ray of this process ({own})", say)


def _answering_nodes(title: str, say: Callable[[str], None]) -> list[Node]:
    """Return the nodes of a cluster that was joined, the driver's first.

    Raises:
        UsageError: the driver's own node does not answer.
    """
    nodes = Roster([], "", say).answers()
    if not nodes or nodes[0].node_id != ray.get_runtime_context().get_node_id():
        raise UsageError(
            f"the node of {title} on this machine starts no process within {PROBE_TIMEOUT_S:g} s;"
            " see whether it is well, or start it again"
        )
    return nodes


def _require_answer(address: str) -> None:
    """Connect to `host:port` once: Ray itself tries for five minutes before it gives up.

    Raises:
        ConnectionError: nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from None


def require_own_node(nodes: Sequence[Node]) -> None:
    """Require that the driver's own node is among the living.

    Raises:
        StoppedError: its raylet is dead, without which no actor starts and none can be reached.
    """
    if not nodes or nodes[0].node_id != ray.get_runtime_context().get_node_id():
        raise StoppedError("Ray's node on this machine died (its raylet was killed or crashed)")


def living_nodes() -> list[Node]:
    """Return the nodes that are alive, the driver's first, with those facts alone that Ray has of
    them."""
    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for entry in ray.nodes():
        if not entry["Alive"]:
            continue
        cores, store = (
            int(entry["Resources"].get(name, 0)) for name in ("CPU", "object_store_memory")
        )
        nodes.append(
            Node(
                entry["NodeID"],
                entry["NodeManagerAddress"],
                {
                    kind: tuple(map(str, range(count)))
                    for kind, count in _counted(entry["Resources"]).items()
                },
                cores,
                store,
                entry["NodeManagerHostname"],
                entry["Labels"],
            )
        )
    return sorted(nodes, key=lambda node: (node.node_id != here, node.address, node.node_id))


def _counted(resources: Mapping[str, float]) -> dict[str, int]:
    return {kind: int(resources.get(name, 0)) for kind, name in RAY_RESOURCES.items()}


@dataclass(frozen=True, slots=True)
class _Question:
    """A node that was asked for its facts, and the time until which we wait for the answer."""

    node_id: str
    deadline: float


class Roster:
    """The nodes of a cluster that have answered with their facts; nodes that join are asked.

    Nodes in `known` are not asked again. A node that joins later with another version of this
    package than `version` ("": any) is left out. `say` is told the nodes that are left out, with
    the reason.
    """

    def __init__(self, known: Sequence[Node], version: str, say: Callable[[str], None]) -> None:
        self._known = {node.node_id: node for node in known}
        self._version = version
        self._say = say
        self._asked: dict[Any, _Question] = {}
        self._left_out: set[str] = set()

    def nodes(self) -> list[Node]:
        """Return the living nodes that have answered, the driver's first, without waiting."""
        living = {node.node_id: node for node in living_nodes()}
        waited_for = {question.node_id for question in self._asked.values()}
        for node_id in living:
            if node_id not in self._known and node_id not in self._left_out | waited_for:
                self._asked[_ask(node_id)] = _Question(node_id, time.monotonic() + PROBE_TIMEOUT_S)
        self._hear(living)
        return [self._known[node_id] for node_id in living if node_id in self._known]

    def answers(self) -> list[Node]:
        """Return the nodes as `nodes` does, once each has answered or is left out."""
        nodes = self.nodes()
        while self._asked:
            until = min(question.deadline for question in self._asked.values())
            ray.wait(list(self._asked), timeout=max(0.0, until - time.monotonic()))
            nodes = self.nodes()
        return nodes

    def _hear(self, living: Mapping[str, Node]) -> None:
        """Take the answers that have come, and leave out nodes that are late or cannot answer."""
        if not self._asked:
            return
        ready, waiting = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for ref in ready:
            node_id = self._asked.pop(ref).node_id
            try:
                facts = ray.get(ref)
            except RayError as error:
                self._leave_out(living, node_id, f"it cannot answer ({type(error).__name__})")
                continue
            if node_id in living:
                self._admit(_told(living[node_id], facts, is_here=node_id == next(iter(living))))
        for ref in waiting:
            question = self._asked[ref]
            if question.deadline < time.monotonic():
                del self._asked[ref]
                ray.cancel(ref, force=True)
                why = f"it did not answer in {PROBE_TIMEOUT_S:g} s"
                self._leave_out(living, question.node_id, why)

    def _admit(self, node: Node) -> None:
        if self._version and has_other_package(self._version, node):
            theirs = node.versions.get(probe.PACKAGE, "none")
            why = f"its {probe.PACKAGE} is {theirs}, not {self._version}"
            self._leave_out({node.node_id: node}, node.node_id, why)
            return
        # Of the nodes that a run begins with a table tells.
        other = version_differences(node, list(self._known.values())) if self._version else ""
        if other:
            self._say(f"warning: node {node.address} ({node.hostname}) has {other}")
        self._known[node.node_id] = node

    def _leave_out(self, living: Mapping[str, Node], node_id: str, why: str) -> None:
        self._left_out.add(node_id)
        if node_id in living:  # A node that has left again is not reported.
            node = living[node_id]
            self._say(f"node {node.address} ({node.hostname}) is left out: {why}")


def _ask(node_id: str) -> Any:
    """Ask a node for its facts, by a task that claims no resources and carries its own code."""
    cloudpickle.register_pickle_by_value(probe)
    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(probe.probe_machine)
    return task.options(scheduling_strategy=affinity).remote(asked_facts())


def _told(node: Node, facts: probe.Facts, *, is_here: bool) -> Node:
    """Return a node with its facts; on the driver's machine the driver's environment variables count."""
    counted = {kind: len(ids) for kind, ids in node.visible.items()}
    if is_here:
        own = {
            k: os.environ[name] for k, name in probe.VISIBLE_DEVICES.items() if name in os.environ
        }
        facts = {**facts, "variables": {**facts["variables"], **own}}
    return replace(
        node,
        visible=visible_devices(facts, counted),
        versions=facts["versions"],
        names=facts["names"],
        plugins=facts["plugins"],
    )
