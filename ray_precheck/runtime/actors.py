"""What the driver needs of a cluster: actors, their answers, a clock, and whether an actor is heard from.

`runtime.ray_actors` has Ray behind it. The simulated histories and the simulation of large clusters
put machines of their own behind it, and drive the same driver, crew, recorder and writer.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.workers.process import SILENT_S, START_TIMEOUT_S

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


# An actor that owes an answer for so long is asked whether it is there.
_PULSE_S = SILENT_S / 3


class ActorPulses:
    """Whether actors that owe an answer are heard from: one that is stopped (SIGSTOP, a paused container)
    neither answers nor dies.

    Such an actor is asked by its method `pulse`, which a thread of its own answers whatever the others do. It
    is lost when nothing was heard for `SILENT_S`, or at its start for `START_TIMEOUT_S`.
    """

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._heard_at: dict[Handle, float] = {}
        self._started: set[Handle] = set()
        self._asked_at: dict[Handle, float] = {}
        self._asked: dict[Answer, Handle] = {}

    @property
    def pending(self) -> list[Answer]:
        """The answers that are awaited."""
        return list(self._asked)

    def owes(self, handle: Handle) -> None:
        """Note that an answer of an actor begins to be awaited."""
        self._heard_at[handle] = self._actors.clock()

    def heard(self, handle: Handle) -> None:
        """Note that an actor has answered."""
        self.owes(handle)
        self._started.add(handle)

    def take(self, answer: Answer) -> bool:
        """Take an answer that has come; return whether it was one to a question of this object."""
        handle = self._asked.pop(answer, None)
        if handle is not None:
            del self._asked_at[handle]
            self.heard(handle)
        return handle is not None

    def is_lost(self, handle: Handle) -> bool:
        """Return whether an actor that owes an answer is lost; ask it if it may be."""
        now = self._actors.clock()
        silent_s = now - self._heard_at[handle]
        if handle not in self._asked_at:
            if silent_s >= _PULSE_S:
                self._asked[self._actors.call(handle, "pulse")] = handle
                self._asked_at[handle] = now
            return False
        limit_s = SILENT_S if handle in self._started else START_TIMEOUT_S
        # The driver may have been stopped, too, and must leave time for the answer.
        return silent_s >= limit_s and now - self._asked_at[handle] >= SILENT_S - _PULSE_S

    def forget(self, handle: Handle) -> None:
        """Ask an actor no longer."""
        self._heard_at.pop(handle, None)
        self._started.discard(handle)
        if self._asked_at.pop(handle, None) is not None:
            self._asked = {answer: each for answer, each in self._asked.items() if each != handle}
