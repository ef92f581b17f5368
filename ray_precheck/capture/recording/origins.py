"""Tensors that came into a recorded call although no recorded call has made them.

Comes in: each tensor that a recorded call gets or gives, what the framework's other functions give, and what
data loaders hand over. Goes out: notes of those that were made in this step by code that nobody saw. Extended
by the `darkness` of each framework.

A tensor is known by what stands for its memory (`anchor`). What was there before the step began is no output
of it: Python's collector is asked, which sets aside (`gc.freeze`, in no time) all objects that are there,
until the step ends or a collection of all objects begins. From then on, and where the script uses `gc.freeze`
itself, nothing can be told.
"""

import functools
import gc
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FrameType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ray_precheck.capture.recording.recorder import StepRecorder

Take: TypeAlias = Callable[[FrameType, tuple[Any, ...], dict[str, Any], Any], None]
_DEEPEST = 6
_OLDEST = 2
# So many tensors are asked for their age at once; while few objects are new, each at once.
_AT_ONCE, _FEW_RECORDS = 32, 100


class Origins(ABC):
    """Which tensors are known, and whether an object was made since the step began."""

    tensor: ClassVar[type]

    def __init__(self) -> None:
        # By the identities of what stands for tensors.
        self.known: dict[int, weakref.ref[Any]] = {}
        self._tells_age = False

    @abstractmethod
    def anchor(self, tensor: Any) -> Any:
        """Return the object by which a tensor is known; None where there is none."""

    @property
    def is_able(self) -> bool:
        """Whether that object is there as long as the memory is."""
        return True

    def begin(self) -> None:
        """Set aside all objects that are there, as not of this step."""
        if self.is_able and not self._tells_age and not gc.get_freeze_count():
            gc.freeze()
            self._tells_age = True
            gc.callbacks.append(self._on_collection)

    def end(self) -> None:
        """Let the collector look at all objects again."""
        if self._tells_age:
            self._tells_age = False
            gc.callbacks.remove(self._on_collection)
            gc.unfreeze()

    def _on_collection(self, phase: str, told: Mapping[str, Any]) -> None:
        """A collection of all objects is one of all objects, also in a captured step."""
        if phase == "start" and told.get("generation") == _OLDEST:
            self.end()

    def know(self, tensor: Any) -> None:
        """Take note of a tensor that may come into calls."""
        self.meet(tensor)

    def _know(self, anchor: Any) -> bool:
        """Take note of what stands for a tensor, and return whether it was known."""
        is_known = self._is_known(anchor)
        if not is_known:
            self.known[id(anchor)] = weakref.ref(anchor)
        return is_known

    def _is_known(self, anchor: Any) -> bool:
        found = self.known.get(id(anchor))
        return found is not None and found() is anchor

    def meet(self, tensor: Any) -> bool:
        """Take note of a tensor, and return whether it was known; of one without an anchor nothing can be
        told."""
        anchor = self.anchor(tensor)
        return anchor is None or self._know(anchor)

    def know_all(self, value: Any, depth: int = 0) -> None:
        """Take note of the tensors in what a data loader or a function gives."""
        if isinstance(value, self.tensor):
            self.know(value)
        elif depth < _DEEPEST:
            for each in _inside(value):
                self.know_all(each, depth + 1)

    def knows(self, tensor: Any) -> bool:
        """Return whether a tensor is known; of one without an anchor nothing can be told."""
        anchor = self.anchor(tensor)
        return anchor is None or self._is_known(anchor)

    def made_now(self, tensors: Iterable[Any]) -> list[Any]:
        """Return those of some tensors that were made since the step began, as far as that can be told."""
        asked = {id(each): each for each in tensors}
        if not asked or not self._tells_age:
            return []
        return [asked[id(each)] for each in gc.get_objects() if id(each) in asked]


class _Stranger(NamedTuple):
    tensor: Any
    what: str
    module: str
    place: str
    code: CodeType


class Strangers(ABC):
    """Names what runs out of sight in one step, and the tensors that came from there.

    A tensor that a named place has made is not named once more where it comes into a call of the same module.
    """

    def __init__(self, recorder: StepRecorder, origins: Origins) -> None:
        self._recorder = recorder
        self._origins = origins
        self._dark = recorder.dark
        self._where = recorder.where
        self.unknown: list[Any] = []
        self._strangers: list[_Stranger] = []
        self._named: set[tuple[str, str]] = set()
        self._left: set[object] = set()
        self._records = 0

    @abstractmethod
    def in_backward(self) -> bool:
        """Return whether a backward pass runs, whose tensors the framework makes."""

    @abstractmethod
    def node_name(self, tensor: Any) -> str | None:
        """Return the name of what has computed a tensor, "" without one; None if it was not computed."""

    def is_constructed(self, code: CodeType) -> bool:
        """Return whether a function may make tensors of data in a way that nobody is told of."""
        return False

    def ask(self, name: str, frame: FrameType) -> None:
        """Ask for the age of the tensors that came into a call without a producer."""
        unknown, self.unknown = self.unknown, []
        if self.in_backward():
            return
        code = self._recorder.program_frame(frame).f_code
        for tensor in unknown:
            node = self.node_name(tensor)
            if node is None:
                continue
            made = node and f" ({node})"
            what = f"a tensor that no recorded call made{made} and {name} got"
            self._strangers.append(_Stranger(tensor, what, *self._where(frame), code))
        self._records += 1
        if self._records < _FEW_RECORDS or len(self._strangers) >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Name those that were made in this step."""
        strangers, self._strangers = self._strangers, []
        made = {id(each) for each in self._origins.made_now(each.tensor for each in strangers)}
        for each in strangers:
            file = each.place.rpartition(":")[0]
            is_new = id(each.tensor) in made and (each.module, file) not in self._named
            if is_new and not self.is_constructed(each.code):
                self._dark.note(each.what, module=each.module, place=each.place)

    def note_dark(self, what: str, frame: FrameType | None) -> None:
        """Name what runs unseen where a frame is; what it gives is not asked for its origin."""
        module, place = self._where(frame)
        file = place.rpartition(":")[0]
        self._named |= {(each, file) for each in self._recorder.modules_at(frame) or [""]}
        self._dark.note(what, module=module, place=place)

    def leaves(self, address: int, frame: FrameType) -> None:
        """Take note of where values leave the framework, and of the memory in which they are."""
        module, place = self._where(frame)
        self._left |= {place, ("memory", address)}
        if module:
            self._left.add(("module", module))

    def from_array(self, array: Any, frame: FrameType, address: int = 0) -> None:
        """Take what becomes a tensor: it is dark if values of this step may be in it."""
        found = getattr(array, "__array_interface__", None)
        if found is not None and np.asarray(array).dtype.kind in "fc":
            address = found["data"][0]
        elif found is not None or not address:
            return
        module, place = self._where(frame)
        if not self._left.isdisjoint({place, ("module", module), ("memory", address)}):
            self.note_dark("values that went through numpy, or another library", frame)

    def _safely(self, action: Callable[[], None]) -> None:
        self._recorder.guarded("what has no record", action)


def followed(original: Callable[..., Any], take: Take) -> Callable[..., Any]:
    """Return a function after whose calls `take` gets the caller's frame, the arguments and the result."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        take(sys._getframe(1), args, kwargs, result)
        return result

    return call


def in_thread(thread: threading.Thread, name: str) -> str:
    """Return the words for operators that run in another thread, of which `name` is the first."""
    target = getattr(thread, "_target", None)
    label = getattr(target, "__qualname__", "") or type(thread).__name__
    return f"operators in another thread ({label}), {name} the first of them"


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple | list):
        return value
    return getattr(value, "__dict__", {}).values()
