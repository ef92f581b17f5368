"""Each call of an operator in a captured step, and each compiled region.

Comes in: the calls of MindSpore's functions and methods. Goes out: for each a record of what it got, gave,
and which gradients passed through it. Entered by `probe` for the time of a captured step; nothing of
MindSpore is changed outside of it.

MindSpore asks nobody before it runs a function, as torch's function modes are, so the functions are replaced
where they stand and where they were imported by name, and the calls of primitives in their classes. What a
recorded function calls itself is not recorded.
A region that `ms.jit` compiles has one record.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, Protocol

from ray_precheck.capture.mindspore.darkness import MindSporeDarkness
from ray_precheck.capture.mindspore.names import (
    FunctionPlace,
    attributes_of,
    entries_of_overloads,
    primitive_name,
    recorded_primitives,
)
from ray_precheck.capture.mindspore.patches import Patches, keep_out_of_compilers, tracing
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.recording.recorder import CallName, SeenCall


class _Inside(threading.local):
    """Whether a recorded call runs in this thread."""

    call = False


class CallSink(Protocol):
    """What takes calls: the recorder, or what stands before it."""

    def call(self, call: SeenCall) -> Any:
        """Make a call, and return what it gives."""

    def compiled(self, call: SeenCall, result: Any) -> None:
        """Take note of the call of a compiled function."""


class Calls:
    """The replacements for MindSpore's functions; `sink` takes the calls in the recorder's place, at every
    level."""

    def __init__(
        self,
        places: Sequence[FunctionPlace],
        recorder: MindSporeRecorder,
        sink: CallSink | None = None,
    ) -> None:
        self._places = places
        self._sink = sink or recorder
        self._sees_calls = recorder.settings.calls or sink is not None
        self._inside = _Inside()
        # A function that is traced (`capture_mode="trace"`) runs with a context of its own.
        self._tracing = tracing()
        self.patches = Patches()
        self._darkness: MindSporeDarkness | None = None
        if sink is None and self._sees_calls:
            self._darkness = MindSporeDarkness(recorder)
            recorder.darkness = self._darkness if recorder.sees_all else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each call, for the time of a captured step."""
        try:
            if self._sees_calls:
                self._replace_functions()
            keep_out_of_compilers(self.patches, self._region)
            with self._darkness.watched(self.patches) if self._darkness else nullcontext():
                yield
        finally:
            self.patches.take_away()

    def _replace_functions(self) -> None:
        for kind in recorded_primitives():
            self.patches.put(kind, "__call__", self._seen_primitive(vars(kind)["__call__"]))
        by_function: dict[int, tuple[Any, Any]] = {}
        for owner, attribute, name, function in self._places:
            replacement = self._seen(name, function)
            self.patches.put(owner, attribute, replacement)
            by_function.setdefault(id(function), (function, replacement))
        for entry, function in entries_of_overloads():
            if id(function) in by_function:
                by_function[id(entry)] = (entry, by_function[id(function)][1])
        self.patches.put_where_imported(by_function)

    def _seen(self, name: CallName, function: Any) -> Callable[..., Any]:
        """Return a function that records its calls."""
        inside, tracing, hand_over = self._inside, self._tracing, self._hand_over

        @functools.wraps(function)
        def seen(*args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return function(*args, **kwargs)

            if inside.call or tracing():
                return run()
            return hand_over(SeenCall(name, sys._getframe(1), args, kwargs, run))

        return seen

    def _seen_primitive(self, original: Any) -> Callable[..., Any]:
        """Return the call of a class of primitives, which records itself with the primitive's attributes."""
        inside, tracing, hand_over = self._inside, self._tracing, self._hand_over

        @functools.wraps(original)
        def seen(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return original(primitive, *args, **kwargs)

            kind: Any = type(primitive)
            name = None if inside.call or tracing() else primitive_name(kind)
            if name is None:
                return run()
            told = {**attributes_of(primitive), **kwargs}
            return hand_over(SeenCall(name, sys._getframe(1), args, told, run))

        return seen

    def _hand_over(self, call: SeenCall) -> Any:
        """Hand a call to the sink; what it calls itself has no record."""
        darkness, self._inside.call = self._darkness, True
        try:
            if darkness is not None and darkness.is_elsewhere():
                return darkness.elsewhere(call)
            return self._sink.call(call)
        finally:
            self._inside.call = False

    def _region(
        self,
        function: Any,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Record the call of a compiled function."""
        if not self._inside.call and self._sees_calls:
            call = SeenCall(CallName.of_region(function), frame, args, kwargs, lambda: result)
            self._sink.compiled(call, result)

    def custom(self, call: SeenCall) -> Any:
        """Record a call of a function of the script; what it calls itself has no record."""
        if self._inside.call or self._tracing() or not self._sees_calls:
            return call.run()
        return self._hand_over(call)
