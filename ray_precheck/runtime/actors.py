"""What the driver needs of a cluster: actors, their answers, and a clock.

`runtime.ray_actors` has Ray behind it. The simulated histories and the simulation of large clusters
put machines of their own behind it, and drive the same driver, crew, recorder and writer.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ray_precheck.runtime.places.devices import Node

Handle = Any
"""An actor, as `start` returns it; hashable."""

Answer = Any
"""The answer to a call that may not be there yet; hashable."""


class ActorError(Exception):
    """A call has no answer. `reason` is one line for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallFailed(ActorError):
    """The method raised `cause`; the actor lives, and can be called again."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.cause = cause


class ActorLost(ActorError):
    """The actor is gone, with all that it had; `for_memory`: it was ended to free memory."""

    def __init__(self, reason: str, *, for_memory: bool = False) -> None:
        super().__init__(reason)
        self.for_memory = for_memory


class Actors(Protocol):
    """Starts actors and calls them. Only `wait` waits; all other methods return at once."""

    def clock(self) -> float:
        """Return the time in seconds, from any beginning; it never goes back."""

    def start(self, actor: Any, node_id: str, *args: Any, **options: Any) -> Handle:
        """Start an actor on a node; `node_id` "" is the driver's own. `actor` is its class, which is
        called with the other arguments."""

    def call(self, handle: Handle, method: str, *args: Any) -> Answer:
        """Call a method of an actor. An `Answer` among the arguments stands for its value, which is
        brought to the actor's node."""

    def put(self, content: object) -> Answer:
        """Keep an object where actors on every node can get it."""

    def wait(
        self, answers: Sequence[Answer], timeout_s: float, gather_s: float = 0.0
    ) -> list[Answer]:
        """Wait until one of the answers is there or the time is over, and then `gather_s` for more;
        return all that are there."""

    def result(self, answer: Answer) -> Any:
        """Return the value of an answer that has come.

        Raises:
            CallFailed: the method raised.
            ActorLost: the actor is gone.
        """

    def kill(self, handle: Handle) -> None:
        """End an actor with its processes, at once; an actor that is gone already is ignored."""

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and known, the driver's own first; without waiting.

        Raises:
            StoppedError: the driver's own node is gone.
        """
