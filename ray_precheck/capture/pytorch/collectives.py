"""The collectives of torch.distributed in a captured step.

Comes in: the recorder of a captured step, and each call of a collective. Goes out: its record. Put on by
`probe` for the time of a captured step.

torch.distributed's functions are no operators: they take a detour in every module that has imported them by
name, too. An asynchronous one has its record when it is waited for, or at the end of the step, without what
it gave. Of a batch of sends and receives each has its own, when it has arrived, as if it had been called
alone. A record has all arguments as its output, since a collective writes into them.

Functional collectives are operators without a record of their own: `functional_collectives` sees them. What
`saying` adds to the records within is who makes them (`sharded`). Sends and receives have the numbers that
`messages` counts.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed as distributed

from ray_precheck.capture.pytorch.calls import detour_all
from ray_precheck.capture.pytorch.elements import group_text
from ray_precheck.capture.pytorch.functional_collectives import Finish, FunctionalCollectives
from ray_precheck.capture.pytorch.messages import Messages
from ray_precheck.capture.pytorch.recorder import TorchRecorder

NAMES = (
    "send recv isend irecv batch_isend_irecv broadcast all_reduce reduce all_gather gather scatter"
    " reduce_scatter all_to_all all_to_all_single all_gather_into_tensor reduce_scatter_tensor"
    " all_gather_single reduce_scatter_single _all_gather_base _reduce_scatter_base barrier"
).split()
# The arguments that a collective only writes: what they hold before means nothing.
_ONLY_WRITTEN: dict[str, tuple[int | str, ...]] = {
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
    "all_gather": (0, "tensor_list"),
    "gather": (1, "gather_list"),
    "scatter": (0, "tensor"),
    "reduce_scatter": (0, "output"),
    "_reduce_scatter_base": (0, "output_tensor"),
    "_all_gather_base": (0, "output_tensor"),
    "all_to_all_single": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_single": (0, "output_tensor"),
    "reduce_scatter_tensor": (0, "output"),
    "reduce_scatter_single": (0, "output"),
}
# A batch of these has a record of each; the module in which torch asks which function an operation has.
_BATCH, _OF_BATCHES = "batch_isend_irecv", ("isend", "irecv")
_HOME = "torch.distributed.distributed_c10d"
# What tells that a work has done: by False that it has not.
_ARRIVALS = ("wait", "is_completed")


class _Call(NamedTuple):
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Thread(threading.local):
    """What holds in one thread: whether a collective runs, and the fields of the records within."""

    inside = False
    said = ""


@dataclass(slots=True)
class _Begun:
    """A collective that runs; `finish` writes its record, once."""

    call: _Call
    finish: Finish
    sequence: int | None = None

    def end(self, done: bool) -> None:
        """Write the record, with what the arguments hold then if the collective has done."""
        args, kwargs = self.call.args, self.call.kwargs
        fields = _group_field(args, kwargs)
        if self.sequence is not None:
            fields += f', "sequence": {self.sequence}'
        self.finish((*args, *kwargs.values()) if done else (), fields)


class Collectives:
    """Records collectives while they are watched; `messages` counts sends and receives."""

    def __init__(self, recorder: TorchRecorder, messages: Messages) -> None:
        self._recorder, self._messages = recorder, messages
        self._thread = _Thread()
        self._pending: dict[int, tuple[Any, Callable[[bool], None]]] = {}
        self._functional = FunctionalCollectives(self._begin, self._run, self._is_off, _group_of)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each collective, for the time of a captured step."""
        if not distributed.is_available():
            yield
            return
        with detour_all(self._detours()), self._functional.watched():
            try:
                yield
            finally:
                for _, finish in list(self._pending.values()):
                    finish(False)
                self._pending.clear()

    def _detours(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield what takes the places of functions, one after the other."""
        main = sys.modules["__main__"]
        for name, holders in _holders(*imported()).items():
            original = getattr(distributed, name)
            told = self._told(name, original)
            # The script may have put another function there, or taken one, without an import.
            for holder in dict.fromkeys([*holders, main]):
                is_own = name in _OF_BATCHES and holder.__name__ == _HOME
                if vars(holder).get(name) is original and not is_own:
                    yield holder, name, told
        for word in ("__new__", "__init__"):
            yield distributed.P2POp, word, _unwrapping(word)
        for word in _ARRIVALS:
            yield distributed.Work, word, self._waiting(word)

    @contextmanager
    def saying(self, fields: str) -> Iterator[None]:
        """Add fields to the records of the collectives within."""
        before, self._thread.said = self._thread.said, fields
        try:
            yield
        finally:
            self._thread.said = before

    def _is_off(self) -> bool:
        """Return whether another collective, or the capture itself, makes the calls of this moment."""
        mode = self._recorder.mode
        is_quiet = mode is not None and mode.quiet
        return self._recorder.stopped or self._thread.inside or is_quiet

    def _told(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if self._recorder.stopped or self._thread.inside:
                return original(*args, **kwargs)  # another collective calls this one
            frame = sys._getframe(1)
            if name == _BATCH:
                operations = args[0] if args else kwargs.get("p2p_op_list", ())
                calls = [
                    _Call(each.op.__name__, (each.tensor, each.peer), {"group": each.group})
                    for each in operations
                    if isinstance(each, distributed.P2POp)
                ]
            else:
                calls = [_Call(name, args, kwargs)]
            return self._call(calls, lambda: original(*args, **kwargs), frame)

        return collective

    def _call(self, calls: list["_Call"], run: Callable[[], Any], frame: FrameType) -> Any:
        """Make a collective, or a batch of sends and receives, each of which has a record."""
        begun = [self._begun(call, frame) for call in calls]
        self._messages.begin()
        try:
            works = _works(result := self._run(run))
        finally:
            numbers = self._messages.taken()
        if len(numbers) == len(begun):
            for each, number in zip(begun, numbers, strict=True):
                each.sequence = number
        if len(works) == len(begun):
            for work, each in zip(works, begun, strict=True):
                self._wait_for([work], each.end)
        elif works:

            def end(done: bool) -> None:
                for each in begun:
                    each.end(done)

            self._wait_for(works, end)
        else:
            for each in begun:
                each.end(True)
        return result

    def _begun(self, call: "_Call", frame: FrameType) -> _Begun:
        """Take what a collective gets."""
        hidden = _ONLY_WRITTEN.get(call.name, ())
        shown = tuple(None if index in hidden else each for index, each in enumerate(call.args))
        named = {word: None if word in hidden else each for word, each in call.kwargs.items()}
        finish = self._begin(call.name, shown, named, frame)
        return _Begun(call, finish or (lambda outputs, fields="": None))

    def _begin(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Finish | None:
        """Take what a collective gets, and return what writes its record, None where none is wanted."""
        recorder = self._recorder
        key = f"Distributed.{name}.{recorder.number(f'Distributed.{name}')}.forward"
        if not recorder.scope.wants(key):
            return None
        before = recorder.guarded(key, lambda: recorder.before(key, args, kwargs)) or ""
        stack = recorder.guarded(key, lambda: recorder.stack_of(frame))
        parent, said = recorder.parent, self._thread.said

        def write(outputs: tuple[Any, ...], fields: str) -> None:
            recorder.forget((args, kwargs, outputs))
            after = recorder.after(key, outputs)
            recorder.write(key, f"{before}{after}{fields}{said}", stack, parent)

        def finish(outputs: tuple[Any, ...], fields: str = "") -> None:
            recorder.guarded(key, lambda: write(outputs, fields))

        return finish

    def _run(self, run: Callable[[], Any]) -> Any:
        """Call a collective; what it calls itself has no records."""
        mode = self._recorder.mode
        quiet = mode is not None and mode.quiet
        self._thread.inside = True
        if mode is not None:
            mode.quiet = True
        try:
            return run()
        finally:
            self._thread.inside = False
            if mode is not None:
                mode.quiet = quiet

    def _wait_for(self, works: list[Any], finish: Callable[[bool], Any]) -> None:
        """Write the record when the last of some works has been waited for."""
        left = {id(work) for work in works}

        def waited(identity: int, done: bool) -> None:
            left.discard(identity)
            if not left or not done:
                for other in works:
                    self._pending.pop(id(other), None)
                finish(done)

        for work in works:
            self._pending[id(work)] = (work, functools.partial(waited, id(work)))

    def _waiting(self, word: str) -> Callable[..., Any]:
        original = getattr(distributed.Work, word)

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            waiting = self._pending.get(id(work))
            if waiting is not None and result is not False and not self._recorder.stopped:
                waiting[1](True)
            return result

        return wait


def _unwrapping(word: str) -> Any:
    """Return a method of `P2POp` that takes torch's own function where it is given its detour.

    An operation may live longer than the step, or be older, and torch asks which function it has.
    """
    original = getattr(distributed.P2POp, word)

    @functools.wraps(original)
    def made(first: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return original(first, getattr(op, "__wrapped__", op), *args, **kwargs)

    return staticmethod(made) if word == "__new__" else made


def imported() -> tuple[int, str, int]:
    """Return what no longer holds after an import: the number of modules, and which is the last one."""
    last = next(reversed(sys.modules))
    return len(sys.modules), last, id(sys.modules.get(last))


@functools.lru_cache(maxsize=1)
def _holders(_: int, __: str, ___: int) -> dict[str, list[Any]]:
    """Return by the name of each collective the modules that have it, torch.distributed's own first.

    It is asked with what `imported` says, so that all modules are looked through again only after
    another one was imported, which may have taken the place of one that was removed.
    """
    found: dict[str, list[Any]] = {}
    spaces = [(each, getattr(each, "__dict__", {})) for each in list(sys.modules.values())]
    for name in NAMES:
        original = getattr(distributed, name, None)
        if original is not None:
            found[name] = [module for module, space in spaces if space.get(name) is original]
    return found


def _works(result: Any) -> list[Any]:
    """Return the works that a collective has left running."""
    several = result if isinstance(result, list | tuple) else [result]
    return [each for each in several if isinstance(each, distributed.Work)]


def _group_field(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the field of the group that a collective ran in, the whole world where none is named."""
    groups = [
        each for each in (*args, *kwargs.values()) if isinstance(each, distributed.ProcessGroup)
    ]
    return _group_of(groups[0] if groups else distributed.group.WORLD)


def _group_of(group: Any) -> str:
    return "" if group is None else f', "group": {group_text(group)}'
