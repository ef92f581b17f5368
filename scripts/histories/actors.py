"""The machines of a simulated run behind the protocol that Ray stands behind.

Comes in: calls of the package's own driver, crew, recorder and shipper. Goes out: answers, in an
order and with troubles that choices decide: between two looks of the driver any number of events
happens, so that several answers, and the loss of their node, come in one step. The actors are the
package's own `Worker` and `Writer`; below them processes and the disk are simulated.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray_precheck.errors import DeviceError, PrecheckError
from ray_precheck.runtime.actors import ActorError, ActorLost, CallFailed
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.recorder import Writer
from ray_precheck.schema.task import DeviceSlot
from scripts.histories.answers import Cast, Choices, Layout, Say
from scripts.histories.disk import Died
from scripts.histories.files import Files, Restart
from scripts.histories.job import Steps
from scripts.histories.process import SimulatedWorker, WorkerDies
from scripts.histories.rules import Broken, require

_MOST_MORE = 4
_PAUSES_S = (0.0, 0.01, 0.5, 2.5)
_MOST_IDLE = 60


class Ref:
    """An answer that may not be there yet."""

    __slots__ = ("actor", "args", "error", "is_there", "method", "node_id", "value")

    def __init__(self, actor: "Actor | None", method: str, args: tuple[Any, ...]) -> None:
        self.actor = actor
        self.method = method
        self.args = args
        self.is_there = False
        self.value: Any = None
        self.error: ActorError | None = None
        # The node whose object store holds the value.
        self.node_id = ""

    def come(self, value: Any, node_id: str = "") -> None:
        self.value, self.node_id, self.is_there = value, node_id, True

    def fail(self, error: ActorError) -> None:
        self.error, self.is_there = error, True


class Actor:
    """An actor on a node, with the calls that it has not answered, in their order.

    `lost_as`: the actor is gone, and every call of it says so. `is_silent`: its machine is gone, and
    calls of it get no answer. `is_stopped`: neither do they, but it is there.
    """

    def __init__(self, body: Any, node_id: str, slot: DeviceSlot | None) -> None:
        self.body = body
        self.node_id = node_id
        self.slot = slot
        self.queue: deque[Ref] = deque()
        self.lost_as: ActorLost | None = None
        self.is_killed = False
        self.is_silent = self.is_stopped = False
        # The turn of a batch that never came, because an argument of it is lost; later turns wait for it.
        self.missing_turn = 0

    @property
    def waits_for_turn(self) -> bool:
        """Whether it waits for a batch that never comes, and does nothing until it is opened again."""
        return self.missing_turn > 0 and all(ref.method != "open" for ref in self.queue)

    @property
    def is_busy(self) -> bool:
        """Whether it has a batch."""
        return any(ref.method == "run" for ref in self.queue)


class Machine:
    """The machines of one life of a driver. `happen` is called first, and may bring trouble."""

    def __init__(
        self,
        cast: Cast,
        choices: Choices,
        layout: Layout,
        files: Files,
        steps: Steps,
        say: Say,
        trouble: Callable[["Machine"], bool],
    ) -> None:
        self.cast = cast
        self.choices = choices
        self.layout = layout
        self.files = files
        self.say = say
        self.steps = steps
        self._trouble = trouble
        self.living = [layout.make_node(number) for number in range(layout.nodes)]
        self.nodes_made = layout.nodes
        self.home = self.living[0].node_id
        self.actors: list[Actor] = []
        self._writers: list[Writer] = []
        self.failing_starts: dict[str, int] = {}
        self.on_open: Callable[[DeviceSlot], None] = lambda slot: None
        self.on_append: Callable[[Sequence[Any]], None] = lambda finished: None
        self.is_forgotten: Callable[[int], bool] = lambda ticket: False
        self.every_prefix = False
        self._now_s = 0.0
        self._idle = 0
        self._end: Restart | None = None

    # The calls of the driver.

    def clock(self) -> float:
        return self._now_s

    def nodes(self) -> list[Node]:
        self._require_driver()
        return list(self.living)

    def put(self, content: object) -> Ref:
        ref = Ref(None, "put", ())
        ref.come(content, self.home)
        return ref

    def start(self, actor: type, node_id: str, *args: Any, **options: Any) -> Actor:
        self._require_driver()
        if actor is Writer:
            made = Actor(Writer(*args, **options), self.home, None)
            self._writers.append(made.body)
        else:
            worker = SimulatedWorker(self, *args, **options)
            made = Actor(worker, node_id, args[0])
            made.is_silent = not self.is_alive(node_id) and self.choices.chance(2)
        self.actors.append(made)
        return made

    def call(self, handle: Actor, method: str, *args: Any) -> Ref:
        self._require_driver()
        ref = Ref(handle, method, args)
        if handle.is_killed or handle.lost_as is not None:
            ref.fail(handle.lost_as or ActorLost("it was killed"))
        elif method in ("halt", "release", "hand_over", "close"):
            # Threads of their own, or nothing that takes time.
            ref.come(getattr(handle.body, method)(*args), handle.node_id)
        elif method != "pulse":
            handle.queue.append(ref)
        elif not handle.is_stopped and self.is_alive(handle.node_id):
            ref.come(None)
        if method == "open":
            self.on_open(handle.body._slot)
        elif method == "append":
            self.on_append(args[0])
        return ref

    def kill(self, handle: Actor) -> None:
        self._require_driver()
        handle.is_killed = True
        if handle.is_stopped and handle.slot is None:
            self.files.forget_writer()
        if handle in self.actors:
            self.actors.remove(handle)

    def result(self, ref: Ref) -> Any:
        require(ref.is_there, "an answer is taken that is not there")
        if ref.error is not None:
            raise ref.error
        return ref.value

    def wait(self, answers: Sequence[Ref], timeout_s: float, gather_s: float = 0.0) -> list[Ref]:
        """Let things happen until an answer is there, and some more, whatever `gather_s` is; the clock
        goes on."""
        self._require_driver()
        more = self.choices.below(_MOST_MORE)
        ready: list[Ref] = []
        while True:
            ready = [ref for ref in answers if ref.is_there]
            if ready and more <= 0:
                break
            more -= bool(ready)
            if not self._happen():
                break
        if ready:
            self._idle = 0
            self._now_s += _PAUSES_S[self.choices.below(len(_PAUSES_S))]
        else:
            self._idle += 1
            if self._idle > _MOST_IDLE:
                raise Broken("nothing is in flight, and yet the run is not finished")
            # The driver waits long for a machine that is silent.
            self._now_s += timeout_s * 1.5**self._idle
        return ready

    # The events.

    def _happen(self) -> bool:
        """Let one event happen; return False if none can."""
        if self._trouble(self):
            return True
        due = list(self._due())
        if not due:
            return False
        due[self.choices.below(len(due))]()
        return True

    def _due(self) -> Sequence[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        benches: list[Callable[[], None]] = []
        for actor in self.actors:
            if not actor.queue:
                continue
            if actor.lost_as is not None or not self.is_alive(actor.node_id):
                if not actor.is_silent:
                    found.append(partial(self._tell_lost, actor))
                continue
            if actor.waits_for_turn or actor.is_stopped:
                continue
            is_bench = actor.slot is not None and actor.slot.kind == "bench"
            (benches if is_bench else found).append(partial(self._answer, actor))
        if not self.steps.is_idle:
            found.append(self.steps.step)
        if found and self.layout.benches_are_slow:
            return found
        return [*found, *benches]

    def _answer(self, actor: Actor) -> None:
        """Have an actor answer its oldest call; a call of `open` may overtake batches."""
        ref = actor.queue[0]
        opening = next((each for each in actor.queue if each.method == "open"), None)
        overtakes = opening is not None and opening is not ref
        if overtakes and (actor.missing_turn or self.choices.chance(2)):
            ref = opening
        actor.queue.remove(ref)
        if actor.slot is None:
            self._write(actor, ref)
        elif ref.method == "open":
            self._open(actor, ref)
        else:
            self._run(actor, ref)

    def _open(self, actor: Actor, ref: Ref) -> None:
        if ref.args[0] >= actor.missing_turn:
            actor.missing_turn = 0
        try:
            ref.come(actor.body.open(*ref.args))
            self.say("{} is ready", actor.body._slot.label)
        except DeviceError as error:
            self.say("{} does not start", actor.body._slot.label)
            ref.fail(CallFailed(str(error), error))

    def _run(self, actor: Actor, ref: Ref) -> None:
        order, *inputs = ref.args
        values = []
        for each in inputs:
            if isinstance(each, Ref) and (each.error or not self.is_alive(each.node_id)):
                # It lay in the object store of a machine that is gone, or was never made. The actor
                # never sees this batch.
                actor.missing_turn = actor.missing_turn or order.turn
                ref.fail(
                    CallFailed("what it needs is lost")
                    if self.choices.chance(2)
                    else ActorLost("ObjectLostError")
                )
                return
            values.append(each.value if isinstance(each, Ref) else each)
        begun = actor.body.process
        was_open = begun is not None and not begun.is_closed
        try:
            report = actor.body.run(order, *values)
        except WorkerDies:
            self.say("the worker of {} dies", actor.body._slot.label)
            self.lose(actor, ActorLost("ActorDiedError"))
            ref.fail(ActorLost("ActorDiedError"))
            return
        has_run = was_open and (report.results or report.measured or report.failure)
        if has_run:
            require(not self.is_forgotten(order.ticket), f"batch {order.ticket} was forgotten")
        self.say("{} has done {}", actor.body._slot.label, [p.index for p in order.payloads])
        ref.come(report, actor.node_id)

    def _write(self, actor: Actor, ref: Ref) -> None:
        """Have the writer answer a call, which may end the writer, the driver, or the machine."""
        hurt = self.files.arm(actor.body, ref.method, ref.args, every_prefix=self.every_prefix)
        try:
            ref.come(getattr(actor.body, ref.method)(*ref.args))
            if ref.method == "append":
                self.files.acknowledged(ref.args[0])
        except PrecheckError as error:
            ref.fail(CallFailed(str(error), error))
        except Died:
            self.say("the writer dies while it writes")
            self.files.forget_writer()
            self.end_driver(self.files.restart_after(hurt))
            self.lose(actor, ActorLost("ActorDiedError"))
            ref.fail(ActorLost("ActorDiedError"))
        finally:
            self.files.disarm()

    def _tell_lost(self, actor: Actor) -> None:
        """Answer all calls of an actor that is gone with its loss."""
        error = actor.lost_as or ActorLost("ActorDiedError")
        actor.lost_as = error
        for ref in actor.queue:
            ref.fail(error)
        actor.queue.clear()

    def lose(self, actor: Actor, error: ActorLost) -> None:
        """End an actor; the calls that wait for it are told, now or later."""
        actor.lost_as = error
        if actor.queue and self.choices.chance(2):
            return
        self._tell_lost(actor)

    def end_driver(self, restart: Restart | None) -> None:
        """Raise `restart`, if any, which ends the driver, now and at all its later calls."""
        if restart is not None:
            self._end = restart
            raise restart

    def close(self) -> None:
        """Close the timelines that the processes of writers have left open."""
        for writer in self._writers:
            if writer._timeline is not None:
                writer._timeline._close_file()

    def _require_driver(self) -> None:
        if self._end is not None:
            raise self._end

    # Questions about the machines.

    def is_alive(self, node_id: str) -> bool:
        """Return whether a node lives; "" stands for an object that is on no node."""
        return not node_id or any(node.node_id == node_id for node in self.living)

    def needs_files(self, node_id: str) -> bool:
        """Return whether files have to be sent to a node."""
        return self.layout.ships and node_id != self.home

    def fails_to_start(self, label: str) -> bool:
        """Return whether a process does not start now."""
        left = self.failing_starts.get(label, 0)
        self.failing_starts[label] = max(0, left - 1)
        return left > 0

    def workers(self) -> list[Actor]:
        """Return the actors on slots that are not lost."""
        return [a for a in self.actors if a.slot is not None and a.lost_as is None]

    def worker_of(self, label: str) -> Actor | None:
        """Return the actor that the driver has on a slot."""
        found = [a for a in self.actors if a.slot is not None and a.slot.label == label]
        return found[-1] if found else None
