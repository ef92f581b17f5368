"""Ray behind the protocol of `runtime.actors`: actors are Ray's, nodes are those of its cluster.

Made by the session for each run. An actor's class says with `THREADS` how many threads answer which
of its methods; it knows nothing of Ray itself.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck.runtime.actors import ActorLost, CallFailed
from ray_precheck.runtime.places.cluster import Roster, require_own_node
from ray_precheck.runtime.places.devices import Node


class RayActors:
    """The actors of a run on the Ray that is connected. `roster` knows its nodes."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def clock(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> Any:
        """Start an actor on a node, "" for the driver's own."""
        where = node_id or ray.get_runtime_context().get_node_id()
        affinity = NodeAffinitySchedulingStrategy(where, soft=False)
        return _remote(actor).options(scheduling_strategy=affinity).remote(*args, **options)

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        """Call a method; a reference among the arguments is fetched to the actor's node.

        Raises:
            ActorLost: no Ray is connected any more. Ray itself would start another one.
        """
        if not ray.is_initialized():
            raise ActorLost("Ray is not connected any more")
        return getattr(handle, method).remote(*args)

    def put(self, content: object) -> Any:
        """Put something into Ray's object store."""
        return ray.put(content)

    def wait(self, answers: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait for one of the answers; return all that are there by then."""
        if not answers:
            time.sleep(timeout_s)
            return []
        ready: list[Any]
        ready, others = ray.wait(list(answers), num_returns=1, timeout=timeout_s)
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return ready

    def result(self, answer: Any) -> Any:
        """Return an answer.

        Raises:
            CallFailed: the method raised.
            ActorLost: the actor is gone.
        """
        try:
            return ray.get(answer)
        except RayTaskError as error:
            raise CallFailed(_first_line(error), error.cause) from None
        except OutOfMemoryError as error:
            raise ActorLost(type(error).__name__, for_memory=True) from None
        except RayError as error:
            raise ActorLost(type(error).__name__) from None

    def kill(self, handle: Any) -> None:
        """End an actor at once."""
        if ray.is_initialized():  # Otherwise ray.kill would start another Ray.
            with suppress(RayError, ValueError):
                ray.kill(handle)

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and known, the driver's own first.

        Raises:
            StoppedError: the driver's own node is gone.
        """
        nodes = self._roster.nodes()
        require_own_node(nodes)
        return nodes


@cache
def _remote(actor: type) -> Any:
    """Return the class of an actor for Ray.

    Ray must not hide its death by a restart, because the scheduler decides about its work.
    """
    groups = {}
    for name, (threads, methods) in actor.THREADS.items():  # type: ignore[attr-defined]
        groups[name] = threads
        for method in methods:
            setattr(actor, method, ray.method(concurrency_group=name)(getattr(actor, method)))
    return ray.remote(
        num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=groups or None
    )(actor)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().split("\n", maxsplit=1)[0]
