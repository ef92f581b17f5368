"""The Ray cluster of a run: one of our own on this machine, or a running one.

Comes in: an address or "". Goes out: the nodes, the driver's first. Called by the session. Our own
cluster listens on loopback alone, asks for a token that only this user can read, and leaves no
process and no file behind.
"""

import logging
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from ray_precheck.errors import StoppedError, UsageError
from ray_precheck.runtime.devices import RAY_RESOURCES, Node, local_devices
from ray_precheck.runtime.scratch import scratch_folder

_ANSWER_TIMEOUT_S = 10.0
_AUTH_MODE = "RAY_AUTH_MODE"
# Results are numbers, so the object store holds next to nothing.
_OBJECT_STORE_BYTES = 128 << 20


@contextmanager
def open_cluster(address: str, *, debug: bool) -> Iterator[list[Node]]:
    """Start Ray here, or join the cluster at `address`; yields its nodes, the driver's first.

    Raises:
        UsageError: no cluster answers at the address.
    """
    if address:
        yield from _join(address, debug)
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
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    settings = {
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(rays),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    before = {name: os.environ.get(name) for name in (*settings, _AUTH_MODE)}
    os.environ.update(settings)
    # Ray reads the mode when it is imported; where it is not set, ray.init turns the token on.
    os.environ.pop(_AUTH_MODE, None)
    _forget_token()
    try:
        _init(
            address="local",
            num_cpus=os.cpu_count(),
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=debug,
            logging_level=logging.INFO if debug else logging.ERROR,
            _temp_dir=str(rays),
        )
        yield living_nodes(local_devices())
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _forget_token()


def _forget_token() -> None:
    """Let Ray read its token again: it keeps the first for as long as the process lives."""
    AuthenticationTokenLoader.instance().reset_cache()


def _init(**options: Any) -> None:
    """Start Ray.

    Raises:
        StoppedError: it did not start.
    """
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises bare ones
        reason = str(error).strip().split("\n", maxsplit=1)[0].rstrip(".") or type(error).__name__
        raise StoppedError(f"Ray could not be started on this machine: {reason}") from None


def _join(address: str, debug: bool) -> Iterator[list[Node]]:
    level = logging.INFO if debug else logging.ERROR
    try:
        _require_answer(address)
        _forget_token()
        ray.init(address=address, log_to_driver=debug, logging_level=level)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"no Ray cluster answers at --address {address}: {reason}") from None
    try:
        yield living_nodes()
    finally:
        ray.shutdown()


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
    """See that the driver's own node is among the living.

    Raises:
        StoppedError: its raylet is dead, without which no actor starts and none can be reached.
    """
    if not nodes or nodes[0].node_id != ray.get_runtime_context().get_node_id():
        raise StoppedError("Ray's node on this machine died (its raylet was killed or crashed)")


def living_nodes(devices_here: dict[str, int] | None = None) -> list[Node]:
    """Return the nodes that are alive, the driver's first.

    `devices_here` replaces what Ray says of their devices, on a cluster of our own.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = []
    for entry in ray.nodes():
        if not entry["Alive"]:
            continue
        resources = entry["Resources"]
        counts = {k: int(resources.get(name, 0)) for k, name in RAY_RESOURCES.items()}
        devices = counts if devices_here is None else devices_here
        cores, store = (int(resources.get(name, 0)) for name in ("CPU", "object_store_memory"))
        nodes.append(Node(entry["NodeID"], entry["NodeManagerAddress"], devices, cores, store))
    return sorted(nodes, key=lambda node: (node.node_id != here, node.address, node.node_id))
