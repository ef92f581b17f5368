"""Each call of an operator in a captured step, and each compiled region.

Comes in: the calls of MindSpore's functions and methods. Goes out: for each a record of what it got, gave,
and which gradients passed through it. Entered by `probe` for the time of a captured step; nothing of
MindSpore is changed outside of it.

MindSpore asks nobody before it runs a function, as torch's function modes are, so the functions are replaced
where they stand and where they were imported by name. What a recorded function calls itself is not recorded.
A compiler that reads the program's source must find the functions themselves: while a region is compiled
and run everything is as before, and the region has one record.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.names import FunctionPlace, OperatorName
from ray_precheck.capture.mindspore.patches import Patches
from ray_precheck.capture.mindspore.recorder import StepRecorder


class _Inside(threading.local):
    """Whether a recorded call runs in this thread."""

    call = False


class Calls:
    """The replacements for the functions of MindSpore."""

    def __init__(self, places: Sequence[FunctionPlace], recorder: StepRecorder) -> None:
        self._places = places
        self._recorder = recorder
        self._inside = _Inside()
        # A function that is traced (`capture_mode="trace"`) runs with a context of its own.
        self._tracing: Callable[[], Any] = (
            private_parts.find(private_parts.MINDSPORE_JIT_TRACE) or bool
        )
        self.patches = Patches()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See each call, for the time of a captured step."""
        try:
            if self._recorder.settings.calls:
                self._replace_functions()
            self._keep_out_of_compilers()
            yield
        finally:
            self.patches.take_away()

    def _replace_functions(self) -> None:
        by_function: dict[int, tuple[Any, Any]] = {}
        for owner, attribute, name, function in self._places:
            replacement = self._seen(name, function)
            self.patches.put(owner, attribute, replacement)
            by_function.setdefault(id(function), (function, replacement))
        self.patches.put_where_imported(by_function)

    def _seen(self, name: OperatorName, function: Any) -> Callable[..., Any]:
        """Return a function that records its calls."""
        inside, record, tracing = self._inside, self._recorder.call, self._tracing

        @functools.wraps(function)
        def seen(*args: Any, **kwargs: Any) -> Any:
            if inside.call or tracing():
                return function(*args, **kwargs)
            inside.call = True
            try:
                return record(name, sys._getframe(1), args, kwargs, function)
            finally:
                inside.call = False

        return seen

    def _keep_out_of_compilers(self) -> None:
        """Have everything as it was while `ms.jit` compiles a region and runs it."""
        executor = private_parts.find(private_parts.MINDSPORE_JIT)
        if executor is not None:
            self.patches.put(executor, "__call__", self._region(executor.__call__))
        bytecode = private_parts.find(private_parts.MINDSPORE_JIT_BYTECODE)
        if bytecode is not None:
            self._keep_out_of_bytecode(bytecode)

    def _region(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a compiled function, which has a record."""
        recorder, inside, patches = self._recorder, self._inside, self.patches

        @functools.wraps(original)
        def region(executor: Any, *args: Any, **kwargs: Any) -> Any:
            with patches.suspended():
                result = original(executor, *args, **kwargs)
            if not inside.call and recorder.settings.calls:
                # A method gets its Cell as the first argument.
                own = args[1:] if args and hasattr(args[0], executor.fn.__name__) else args
                recorder.compiled(executor.fn, sys._getframe(1), own, kwargs, result)
            return result

        return region

    def _keep_out_of_bytecode(self, context: Any) -> None:
        """Do the same where `ms.jit` looks at bytecode, which it does between an entry and an exit."""
        enter, leave, recorder = context.__enter__, context.__exit__, self._recorder
        open_regions: list[ExitStack] = []

        def entered(region: Any) -> Any:
            stack = ExitStack()
            stack.enter_context(self.patches.suspended())
            open_regions.append(stack)
            if recorder.settings.calls:
                recorder.compiled(region.fn, sys._getframe(1), (), {}, ())
            return enter(region)

        def left(region: Any, *reason: Any) -> Any:
            try:
                return leave(region, *reason)
            finally:
                open_regions.pop().close()

        self.patches.put(context, "__enter__", entered)
        self.patches.put(context, "__exit__", left)
