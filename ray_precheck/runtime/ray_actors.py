"""Ray behind the protocol of `runtime.actors`: actors are Ray's, nodes are those of its cluster.

Made by the session for each run. An actor's class says with `THREADS` how many threads answer which
of its methods; it knows nothing of Ray itself.
"""

import functools
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck.foreign import first_line
from ray_precheck.runtime.actors import ActorLost, CallFailed
from ray_precheck.runtime.places.cluster import Roster, require_own_node
from ray_precheck.runtime.places.devices import Node

# Ray sends arguments of up to 100 KiB with the call, and puts larger ones into the object store, which
# takes the driver five times as long (`max_direct_call_object_size` in Ray's ray_config_def.h).
_PIECE_BYTES = 96 * 1024
# A wait that returns so much too late was one of a process that stood still.
_STOOD_STILL_S = 5.0


class RayActors:
    """The actors of a run on the Ray that is connected. `roster` knows its nodes."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._stood_s = 0.0

    def clock(self) -> float:
        """Return the monotonic time in seconds, without the time that this process was stopped itself."""
        return time.monotonic() - self._stood_s

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> Any:
        """Start an actor on a node, "" for the driver's own."""
        where = node_id or ray.get_runtime_context().get_node_id()
        affinity = NodeAffinitySchedulingStrategy(where, soft=False)
        return _remote(actor).options(scheduling_strategy=affinity).remote(*args, **options)

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        """Call a method; a reference among the arguments is fetched to the actor's node.

        The other arguments are pickled here and not by Ray, whose pickler is written in Python in part
        and takes the driver three times as long.

        Raises:
            ActorLost: no Ray is connected any more. Ray itself would start another one.
        """
        if not ray.is_initialized():
            raise ActorLost("Ray is not connected any more")
        return getattr(handle, method).remote(*_packed(args))

    def put(self, content: object) -> Any:
        """Put something into Ray's object store."""
        return ray.put(content)

    def wait(self, answers: Sequence[Any], timeout_s: float, gather_s: float = 0.0) -> list[Any]:
        """Wait for one of the answers, then `gather_s` for others; return all that are there by then."""
        if not answers:
            time.sleep(timeout_s)
            return []
        ready: list[Any]
        begin = time.monotonic()
        ready, others = ray.wait(list(answers), num_returns=1, timeout=timeout_s)
        late_s = time.monotonic() - begin - timeout_s
        if late_s > _STOOD_STILL_S:  # Ctrl-Z, a paused container: nobody could be heard meanwhile.
            self._stood_s += late_s
        if ready and others:
            time.sleep(gather_s)
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
            raise CallFailed(first_line(error), error.cause) from None
        except OutOfMemoryError as error:
            raise ActorLost(type(error).__name__, for_memory=True) from None
        except RayError as error:
            raise ActorLost(_death(error)) from None

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


@functools.cache
def _remote(actor: type) -> Any:
    """Return the class of an actor for Ray: its public methods take what `_packed` returns.

    Ray must not hide its death by a restart, because the scheduler decides about its work.
    """
    group_of = {
        method: name
        for name, (_, methods) in actor.THREADS.items()  # type: ignore[attr-defined]
        for method in methods
    }
    methods = {}
    for name in dir(actor):
        body = getattr(actor, name)
        if not name.startswith("_") and callable(body):
            taking = _taking_packed(body)
            group = group_of.get(name)
            methods[name] = ray.method(concurrency_group=group)(taking) if group else taking
    groups = {name: threads for name, (threads, _) in actor.THREADS.items()}  # type: ignore[attr-defined]
    remote = type(actor.__name__, (actor,), {**methods, "__module__": actor.__module__})
    return ray.remote(
        num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=groups or None
    )(remote)


def _death(error: RayError) -> str:
    """Return how an actor was lost, with the error that it raised while it was made."""
    name, text = type(error).__name__, str(error).strip()
    return f"{name}: {text.splitlines()[-1].strip()}" if "Traceback" in text else name


def _taking_packed(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that opens its arguments first."""

    # Not `functools.wraps`: Ray looks at the signature, and this takes any number of pieces.
    def method(self: Any, *packed: Any) -> Any:
        return body(self, *_opened(packed))

    return method


class _Reference(int):
    """Stands in pickled arguments for the reference of this number, which Ray must see itself."""


def _packed(args: Sequence[Any]) -> list[Any]:
    """Return the arguments as Ray carries them at the least cost to the driver.

    First the pickled arguments in pieces that travel with the call, the first of which begins with
    the number of references (one byte); then the references.
    """
    if not args:
        return []
    references = [each for each in args if isinstance(each, ray.ObjectRef)]
    if references:
        numbers = iter(range(len(references)))
        args = [_Reference(next(numbers)) if isinstance(a, ray.ObjectRef) else a for a in args]
    try:
        data = pickle.dumps(tuple(args), protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):  # a class that no module has
        data = cloudpickle.dumps(tuple(args))
    data = bytes([len(references)]) + data
    pieces = [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]
    return [*pieces, *references]


def _opened(packed: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments that `_packed` was given, with the values of the references."""
    if not packed:
        return ()
    count = packed[0][0]
    pieces, values = packed[: len(packed) - count], packed[len(packed) - count :]
    args = pickle.loads(memoryview(b"".join(pieces))[1:])
    return [values[each] if isinstance(each, _Reference) else each for each in args]
