"""Each call of an operator in a captured step.

Comes in: the calls of torch's functions, through a `TorchFunctionMode`. Goes out: for each a record of
what it got, gave, and which gradients passed through it. Entered by `probe` for the time of a captured step;
it changes nothing of torch outside of it.

A mode sees a function whatever name it was called by, and not the functions that it calls itself.

torch takes off the mode that lies uppermost, and each thread has a stack of its own. A step may end where
the capture's mode is not uppermost (the script has put on one of its own), not in this thread, or not there
for the moment: torch takes a mode off while it handles a call, such as `backward`, in which an optimizer may
step. Then the mode is left where it is, does nothing any more, and is swept away later.

Given distributed tensors (DTensor) torch moves the parts of arguments as the operator needs them, before this
rank computes its part: a bias that all ranks have whole is added as a part of a sum, one share on each; rows
of an embedding that are elsewhere are masked; what is sharded along a softmax is gathered. `Resharding` tells
what this rank's operator got. An operator that exchanges values with other ranks in its midst (a loss over a
sharded vocabulary) is no operator on this rank's parts.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional
import torch.overrides
from torch.overrides import TorchFunctionMode

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.names import FunctionNames, call_name
from ray_precheck.capture.pytorch.tensors.text import UNDER_WAY, tensors_in
from ray_precheck.capture.recording.recorder import SeenCall, T

# Torch's own files between a caller and an operator that is written in Python.
_WRAPPERS = frozenset(
    module.__file__
    for name in ("overrides", "functional", "nn.functional", "_jit_internal", "_tensor", "_ops")
    if (module := sys.modules.get(f"torch.{name}")) is not None
)
# Python's operators that torch runs as the method of another name: a detour says which one was written.
_DETOURS = {
    "add": ("__add__", "__radd__"),
    "sub": ("__sub__",),
    "mul": ("__mul__", "__rmul__"),
    "div": ("__truediv__",),
    "matmul": ("__matmul__",),
    "remainder": ("__mod__",),
    "add_": ("__iadd__",),
    "sub_": ("__isub__",),
    "mul_": ("__imul__",),
    "div_": ("__itruediv__",),
    "remainder_": ("__imod__",),
    "floor_divide_": ("__ifloordiv__",),
    **{name: (f"__{name}__",) for name in ("ne", "lt", "le", "gt", "ge")},
}
# True while torch.export runs a program, and where torch.compile reads one; torch 2.0 lacks it.
is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Makes a call, records it, and returns what it gives.
Sink: TypeAlias = Callable[[SeenCall], Any]
_EXCHANGES = (
    "all_reduce all_gather_tensor reduce_scatter_tensor all_gather_single reduce_scatter_single"
    " all_to_all_single"
).split()
# The field of a call that exchanges values in its midst.
EXCHANGED = ', "exchanges": true'


class CallMode(TorchFunctionMode):
    """Hands each call of a recorded function to a sink. The modes `below` were on before the capture began:
    what they do to a call belongs to the call."""

    def __init__(
        self, names: FunctionNames, sink: Sink, below: Sequence[TorchFunctionMode] = ()
    ) -> None:
        super().__init__()
        self._below = tuple(below)
        self._names = names
        self._sink = sink
        self._forms = names.forms
        # Paused in the step of an optimizer, quiet while the capture itself computes.
        self.paused = self.quiet = False
        # It was taken off its stack, because it is paused.
        self._is_resting = False
        # Takes what functions give that have no record.
        self.darkness: Any = None
        # Its captured step is not under way, whatever stack it is still on.
        self._is_over = False
        self._operators = {
            dunder: call_name("Tensor", dunder) for names in _DETOURS.values() for dunder in names
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call if its function is recorded, and make it."""
        kwargs = kwargs or {}
        if self.paused or self.quiet or self._is_over:
            return func(*args, **kwargs)
        name = self._names[func]
        if name is None:
            result = func(*args, **kwargs)
            if self.darkness is not None:
                self.darkness.gave(func, args, result)
            return result
        if is_compiling():
            return func(*args, **kwargs)
        if func in _SPLIT:
            with self:
                return _SPLIT[func](*args)
        frame = sys._getframe(1)
        while frame.f_code.co_filename in _WRAPPERS and frame.f_back is not None:
            frame = frame.f_back
        if name.name in _DETOURS:
            dunder = getattr(_OPERATOR, "name", "")
            if dunder in _DETOURS[name.name]:
                _OPERATOR.name = ""
                name = self._operators[dunder]
        run = functools.partial(func, *args, **kwargs)
        if not name.is_python:
            return self._sink(SeenCall(name, frame, args, kwargs, run))
        is_method = name.prefix == "Tensor"
        given, named = self._forms.written(func, frame, args, kwargs, is_method)
        return self._sink(SeenCall(name, frame, given, named, run))

    @contextmanager
    def through_step(self) -> Iterator[None]:
        """Have the mode on in this thread for the time of a captured step, wherever the step ends."""
        sweep_modes()
        self._is_over = False
        _put_mode_on(self, self._below)
        try:
            yield
        finally:
            self._is_over = True
            if not _take_modes_off(lambda mode: mode is self):
                _LEFT.add(self)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Have the mode on, where it may be off or on already."""
        current = private_parts.find(private_parts.FUNCTION_MODE)
        if current is not None and current() is self:
            yield
        else:
            with self:
                yield

    def pause(self, paused: bool) -> bool:
        """Record nothing, or go on with it, and return what it was.

        A paused mode that is uppermost is taken off: the step of an optimizer calls a dozen operators for
        each parameter, and each way through a mode takes 2 us.
        """
        before, self.paused = self.paused, paused
        if paused and not before:
            self._is_resting = self.leave()
        elif before and not paused and self._is_resting:
            self._is_resting = False
            if self not in modes_on():  # the capture may have begun anew meanwhile
                self.enter_again()
        return before

    def leave(self) -> bool:
        """Take the mode off if it is the uppermost one; returns whether it was, or is off already."""
        if self._is_resting:
            return True
        current = private_parts.find(private_parts.FUNCTION_MODE)
        if current is not None and current() is not self:
            return False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True

    def enter_again(self) -> None:
        """Put the mode on again after `leave`."""
        if not self._is_resting:
            self.__enter__()  # type: ignore[no-untyped-call]

    @contextmanager
    def operators_named(self) -> Iterator[None]:
        """Let the operators of Python say which one was written, for the time of a captured step."""
        # torch makes this table once, when it is asked for: not of functions that have taken a detour.
        torch.overrides.get_overridable_functions()
        with detour_all(
            (torch.Tensor, dunder, _naming(dunder, getattr(torch.Tensor, dunder)))
            for dunders in _DETOURS.values()
            for dunder in dunders
        ):
            yield


# Which operator of Python a thread is about to call.
_OPERATOR = threading.local()


@functools.lru_cache(1 << 6)
def _naming(dunder: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that says its name; it is made once, for all steps."""

    @functools.wraps(original)
    def named(*args: Any) -> Any:
        _OPERATOR.name = dunder
        try:
            return original(*args)
        finally:
            _OPERATOR.name = ""

    return named


# Modes whose step has ended where they could not be taken off.
_LEFT: "weakref.WeakSet[CallMode]" = weakref.WeakSet()


def sweep_modes() -> None:
    """Take modes off the stack of this thread that were left there when their steps ended."""
    if _LEFT:
        _take_modes_off(lambda mode: isinstance(mode, CallMode) and mode._is_over)


def detour(owner: Any, name: str, by: Callable[..., Any]) -> AbstractContextManager[None]:
    """Put a function in the place of an attribute, and take it away again."""
    return detour_all([(owner, name, by)])


@contextmanager
def detour_all(wanted: Iterable[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Put functions in the places of attributes, each of its owner and name, and take them away again."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, by in wanted:
            before.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, by)
        yield
    finally:
        for owner, name, own in reversed(before):
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _divided_by(tensor: torch.Tensor, other: Any) -> Any:
    """Return `other / tensor`, which torch computes by these two calls (`Tensor.__rdiv__`)."""
    return tensor.reciprocal() * other


# What torch does by two operators, each of which has a record, as with msprobe.
_SPLIT = {torch.Tensor.__rdiv__: _divided_by, torch.Tensor.__rtruediv__: _divided_by}


def modes_on() -> tuple[TorchFunctionMode, ...]:
    """Return the modes on this thread's stack, the lowest first."""
    modes = _taken()
    _put(modes)
    return tuple(modes)


def _put_mode_on(mode: TorchFunctionMode, below: Sequence[TorchFunctionMode] = ()) -> None:
    """Put a mode on this thread's stack, beneath those of the script, which then may be taken off first.

    Above it are neither the modes `below`, which were on before the capture began, nor the device that the
    script has set as its default, which is a mode that has to be the lowest.
    """
    modes = _taken()
    default = getattr(private_parts.find(private_parts.DEFAULT_DEVICE), "device_context", None)
    lower = {id(each) for each in (*below, default)}
    place = next((at for at, each in enumerate(modes) if id(each) not in lower), len(modes))
    _put([*modes[:place], mode, *modes[place:]])


def _take_modes_off(is_meant: Callable[[TorchFunctionMode], bool]) -> bool:
    """Take modes off the stack of this thread wherever they stand, and return whether there was one."""
    modes = _taken()
    kept = [mode for mode in modes if not is_meant(mode)]
    _put(kept)
    return len(kept) < len(modes)


def _taken() -> list[TorchFunctionMode]:
    """Take all modes off the stack of this thread; returns them, the lowest first."""
    current = private_parts.find(private_parts.FUNCTION_MODE)
    taken: list[TorchFunctionMode] = []
    while current is not None and (mode := current()) is not None:
        TorchFunctionMode.__exit__(mode, None, None, None)  # type: ignore[no-untyped-call]
        taken.append(mode)
    return taken[::-1]


def _put(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]


def _nothing() -> None:
    """Stand for a question that this version of torch does not answer."""


class Aside:
    """Steps aside where something of the script would look on: what a capture computes is no part of that.

    These are the script's transforms (`torch.func`), its modes of dispatch (a counter of operations, a
    selective checkpoint, `make_fx`) and its tracer (`torch.jit.trace`).
    """

    def __init__(self) -> None:
        find = private_parts.find
        self._modes = find(private_parts.DISPATCH_MODES) or _nothing
        self._without_modes = find(private_parts.NO_DISPATCH_MODES)
        self._transform = find(private_parts.TRANSFORM) or _nothing
        self._without_transforms = find(private_parts.NO_TRANSFORMS)
        self._trace = find(private_parts.TRACE) or _nothing
        self._set_trace = find(private_parts.SET_TRACE)

    @property
    def onlookers(self) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
        """What gives the script's transform and its tracer, or None, and the number of its modes: an action
        need not step aside where there are none, of which callers who ask often ask themselves."""
        return self._transform, self._trace, self._modes

    def __call__(self, action: Callable[..., T]) -> Callable[..., T]:
        """Return an action as it is where nothing looks on, else one that steps aside while it runs."""
        transform, trace, watched = self._transform(), self._trace(), self._modes()
        if transform is None and trace is None and not watched:
            return action

        def unseen(*args: Any) -> T:
            with ExitStack() as hidden:
                if trace is not None and self._set_trace is not None:
                    hidden.callback(self._set_trace, trace)
                    self._set_trace(None)
                if watched and self._without_modes is not None:
                    hidden.enter_context(self._without_modes())
                if transform is not None and self._without_transforms is not None:
                    hidden.enter_context(self._without_transforms())
                return action(*args)

        return unseen


class _Moved(NamedTuple):
    before: torch.Tensor
    after: torch.Tensor
    spec: Any


class Resharding:
    """Takes note of the parts that are moved within a call, for the time of which `is_on` is set."""

    def __init__(self) -> None:
        self._moved: list[_Moved] = []
        self._is_exchanging = False
        self.is_on = self._is_moving = False

    def again(
        self,
        before: str,
        write: Callable[[str, tuple[Any, ...], dict[str, Any]], str],
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> str:
        """Return the fields of what the last call got, by `write` once more if it was known only later."""
        if self._moved or self._is_exchanging:
            found: set[int] = set()
            args, kwargs = self._given((args, kwargs), found)
            is_all = len(found) == len(self._moved) and not self._is_exchanging
            self._moved.clear()
            self._is_exchanging = False
            return write(key, args, kwargs) + ("" if is_all else EXCHANGED)
        if UNDER_WAY in before and all(_under_way(each) is None for each in tensors_in(result)):
            for tensor in tensors_in((args, kwargs)):
                waiting = _under_way(tensor)
                if waiting is not None:
                    waiting.trigger_wait()  # as the call has done, of a view of it
            return write(key, args, kwargs)
        return before

    def _given(self, value: Any, found: set[int]) -> Any:
        if isinstance(value, tuple | list):
            items = [self._given(each, found) for each in value]
            return items if type(value) is list else tuple(items)
        if isinstance(value, dict):
            return {name: self._given(each, found) for name, each in value.items()}
        local = getattr(value, "_local_tensor", None)
        for number, moved in enumerate(self._moved):
            if local is moved.before:
                found.add(number)
                part = moved.after.detach()
                where = moved.spec.mesh, moved.spec.placements
                given = type(value).from_local(part, *where, run_check=False)
                return given.requires_grad_(value.requires_grad)
        return value

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See parts that are moved, for the time of a captured step."""
        with ExitStack() as detours:
            dispatch = functional = None
            if private_parts.is_loaded(private_parts.DTENSOR_MOVES):
                dispatch = private_parts.find(private_parts.DTENSOR_MOVES)
                functional = private_parts.find(private_parts.DTENSOR_EXCHANGES)
            move = getattr(dispatch, "redistribute_local_tensor", None)
            if move is not None:
                by = self._moving(move)
                detours.enter_context(detour(dispatch, "redistribute_local_tensor", by))
                for name in _EXCHANGES:
                    original = getattr(functional, name, None)
                    if original is not None:
                        by = self._exchanging(original)
                        detours.enter_context(detour(functional, name, by))
            yield

    def _moving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def move(local: Any, before: Any, after: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return original(local, before, after, *args, **kwargs)
            self._is_moving = True
            try:
                result = original(local, before, after, *args, **kwargs)
            finally:
                self._is_moving = False
            self._moved.append(_Moved(local, result, after))
            return result

        return move

    def _exchanging(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(*args: Any, **kwargs: Any) -> Any:
            if self.is_on and not self._is_moving:
                self._is_exchanging = True
            return original(*args, **kwargs)

        return exchange


def _under_way(tensor: torch.Tensor) -> Any:
    """Return what a functional collective has given that may not have arrived, None for other tensors."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if type(local).__name__ == "AsyncCollectiveTensor" else None
