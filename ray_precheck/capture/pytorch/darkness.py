"""What a captured step of a PyTorch program does out of the capture's sight.

Comes in: the recorder and the mode of a step. Goes out: notes of dark places: functions of TorchScript,
kernels of Triton, replayed CUDA graphs, values that went through numpy, memory handed to foreign code,
operators in other threads; and, whatever made them, tensors that came into a recorded call and were made in
this step by nobody who was seen. Put on by `probe` for each captured step.
"""

import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any, ClassVar

import torch
import torch.autograd.forward_ad
import torch.utils.data.dataloader
from torch.overrides import TorchFunctionMode

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.calls import detour, is_compiling
from ray_precheck.capture.pytorch.names import FunctionNames
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors.text import tensors_in
from ray_precheck.capture.recording.origins import Origins, Strangers, Take, followed, in_thread
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import function_source
from ray_precheck.capture.settings import STRUCTURE

_TRITON = "triton.runtime.jit"
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# By these the values of a tensor leave torch, and come back.
_LEAVE, _ROOT, _ADDRESS = "leave", "root", "address"
_WAYS: dict[Any, str] = {
    torch.Tensor.numpy: _LEAVE,
    torch.Tensor.__array__: _LEAVE,
    torch.Tensor.__dlpack__: _LEAVE,
    torch.Tensor.backward: _ROOT,
    torch.autograd.backward: _ROOT,
    torch.autograd.grad: _ROOT,
    torch.Tensor.data_ptr: _ADDRESS,
}
_COME_BACK = ("from_numpy", "frombuffer", "from_dlpack")
_FOREIGN = frozenset({"ctypes", "_ctypes", "cffi", "numba", "cupy"})
# What torch makes of tensors or files that no function mode is told of.
_UNSEEN: tuple[tuple[Any, str], ...] = (
    (torch, "load"),
    (torch._VF, "_pack_padded_sequence"),
    (torch._VF, "_pad_packed_sequence"),
    (torch.autograd.forward_ad, "unpack_dual"),
)
# Recorded calls that make a tensor of an array.
_OF_ARRAYS = frozenset({"tensor", "as_tensor", "asarray"})
# Classes whose call makes a tensor of a list, unseen: `torch.FloatTensor([1.0])`.
_CONSTRUCTOR = re.compile(r"\b[A-Z]?[a-z]*Tensor\(")


_MOST_WRAPPERS = 6


class TorchOrigins(Origins):
    """Which storages are known: a view or a detached tensor is known with its base."""

    tensor: ClassVar[type] = torch.Tensor

    def anchor(self, tensor: torch.Tensor) -> Any:
        """Return the storage object of a tensor, of a wrapped one that within; None where there is none."""
        for _ in range(_MOST_WRAPPERS):
            try:
                return tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                    return None
                tensor = torch._C._functorch.get_unwrapped(tensor)
        return None

    def meet(self, tensor: torch.Tensor) -> bool:
        """Take note of a tensor, and return whether it was known; in one piece, which takes half the time."""
        try:
            anchor = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return super().meet(tensor)
        found = self.known.get(id(anchor))
        if found is not None and found() is anchor:
            return True
        self.known[id(anchor)] = weakref.ref(anchor)
        return False

    def met_first(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Take note of tensors with memory of their own, and return those that were not known."""
        known, new = self.known, []
        for tensor in tensors:
            anchor = tensor.untyped_storage()
            found = known.get(id(anchor))
            if found is None or found() is not anchor:
                known[id(anchor)] = weakref.ref(anchor)
                new.append(tensor)
        return new

    @functools.cached_property
    def is_able(self) -> bool:
        """Whether torch has one object for a storage as long as the storage is there (since 2.1)."""
        try:
            tensor = torch.empty(1)
            found = weakref.ref(tensor.untyped_storage())
            return found() is not None and found() is tensor.untyped_storage()
        except (RuntimeError, TypeError, AttributeError):
            return False


class Darkness(Strangers):
    """Takes note of what happens out of sight in one step; `origins` outlast it."""

    def __init__(self, recorder: TorchRecorder, origins: TorchOrigins) -> None:
        super().__init__(recorder, origins)
        self._torch_origins = origins
        self._torch_recorder = recorder
        self._graph_task = private_parts.find(private_parts.GRAPH_TASK)
        # True while arguments of a call are written, whose tensors need a producer.
        self.asks = False

    def in_backward(self) -> bool:
        """Return whether autograd runs a backward pass."""
        return self._graph_task is not None and self._graph_task() >= 0

    def node_name(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a tensor's node; like a parameter, one without may be computed by nobody."""
        node = tensor.grad_fn
        if node is None:
            return None if tensor.requires_grad else ""
        return str(node.name())

    def is_constructed(self, code: CodeType) -> bool:
        """Return whether a function calls a class of tensors (`torch.FloatTensor([1.0])`)."""
        return _CONSTRUCTOR.search(function_source(code)) is not None

    def met(self, tensor: torch.Tensor, *, is_itself: bool) -> None:
        """Take a dense tensor that is looked at for the first time; what stands for another is not asked."""
        if (
            not self._origins.meet(tensor)
            and self.asks
            and is_itself
            and type(tensor) is torch.Tensor
        ):
            self.unknown.append(tensor)

    def met_itself(self, tensor: torch.Tensor) -> None:
        """Take a tensor that is looked at, which is what a call got."""
        if not self._origins.meet(tensor) and self.asks and type(tensor) is torch.Tensor:
            self.unknown.append(tensor)

    @property
    def known(self) -> dict[int, Any]:
        """The storages that were met, each behind a weak reference by its identity."""
        return self._origins.known

    def met_new(self, tensor: torch.Tensor) -> None:
        """Take a tensor that a call got, of a storage that was not known."""
        if type(tensor) is torch.Tensor:
            self.unknown.append(tensor)

    def know(self, value: Any) -> None:
        """Take note of tensors that torch itself has made where nothing is recorded."""
        self._origins.know_all(value)

    def met_many(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take tensors that are looked at, each of which is what the call got."""
        new = self._torch_origins.met_first(tensors)
        if self.asks:
            self.unknown += [each for each in new if type(each) is torch.Tensor]

    def begin_asking(self, call: SeenCall) -> None:
        """Ask for the producers of the tensors that are met from now on, which a call gets."""
        args = call.args
        if call.name.name in _OF_ARRAYS and args and not isinstance(args[0], torch.Tensor):
            self._safely(lambda: self.from_array(args[0], call.frame))
        self.asks = True

    def name_unknown(self, call: SeenCall) -> None:
        """Name the tensors that a call got and that nobody knows."""
        self._safely(lambda: self.ask(call.name.key, call.frame))

    def gave(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Take what a function of torch gave that has no record."""
        is_tensor = type(result) in _TENSORS
        way = None if is_tensor else _WAYS.get(func)
        if (not is_tensor and way is None) or is_compiling():
            return
        if way is None:
            self._origins.know(result)
        else:
            frame = sys._getframe(2)
            self._safely(lambda: self._went(way, args, result, frame))

    def _went(self, way: str, args: tuple[Any, ...], result: Any, frame: FrameType) -> None:
        if way == _LEAVE:
            if args[0].is_floating_point():
                self.leaves(args[0].data_ptr(), frame)
        elif way == _ADDRESS:
            if foreign := _foreign_in(frame):
                self.note_dark(f"memory handed to foreign code ({foreign})", frame)
        else:
            self._origins.know_all(result)
            if self._torch_recorder.darkness is not None:
                roots = tensors_in(args[:1])
                self.unknown += [each for each in roots if not self._origins.knows(each)]
                self.ask("the backward pass", frame)

    @property
    def asks_origins(self) -> bool:
        """Whether each tensor of a call is looked at, so that one without a producer shows."""
        recorder = self._recorder
        settings = recorder.settings
        wants = settings.wants("forward", "input") and settings.wants("forward", "output")
        return recorder.sees_all and settings.task != STRUCTURE and not settings.slices and wants

    @contextmanager
    def watched(self, names: FunctionNames) -> Iterator[None]:
        """See what is done out of sight, for the time of a captured step."""
        self._origins.begin()
        with ExitStack() as hooks:
            hooks.callback(self._origins.end)
            for name in _COME_BACK:
                self._put(hooks, torch, name, self._came_back)
            for owner, name in _UNSEEN:
                self._put(hooks, owner, name, self._given)
            self._put(hooks, private_parts.find(private_parts.LOADER), "__next__", self._given)
            for part in (private_parts.SCRIPT_FUNCTION, private_parts.SCRIPT_METHOD):
                self._put(hooks, private_parts.find(part), "__call__", self._ran_script)
            self._put(hooks, torch.cuda.CUDAGraph, "replay", self._replayed)
            triton = sys.modules.get(_TRITON)
            self._put(hooks, getattr(triton, "JITFunction", None), "run", self._ran_kernel)
            hooks.enter_context(detour(threading.Thread, "start", self._started(names)))
            yield
            if triton is None and _TRITON in sys.modules:
                self._dark.note("kernels of Triton, which was imported in this step")
            self.settle()

    def _put(self, hooks: ExitStack, owner: Any, name: str, take: Take) -> None:
        """Let `take` have what comes of each call of a function, where there is one of that name."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def told(*call: Any) -> None:
            mode = self._torch_recorder.mode
            if mode is not None and mode.quiet:  # the capture takes packed weights apart
                self._origins.know_all(call[-1])
            else:
                self._safely(lambda: take(*call))

        hooks.enter_context(detour(owner, name, followed(original, told)))

    def _came_back(
        self, frame: FrameType, args: tuple[Any, ...], _: dict[str, Any], result: Any
    ) -> None:
        """Take a tensor that was made of foreign memory."""
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.from_array(args[0] if args else None, frame, result.data_ptr())
        self._origins.know_all(result)

    def _given(self, *call: Any) -> None:
        self._origins.know_all(call[-1])

    def _ran_script(
        self, frame: FrameType, args: tuple[Any, ...], _: dict[str, Any], result: Any
    ) -> None:
        self.note_dark(f"the TorchScript function {args[0].name}", frame)
        self._origins.know_all(result)

    def _replayed(self, frame: FrameType, *_: Any) -> None:
        self.note_dark("a CUDA graph that is replayed", frame)

    def _ran_kernel(self, frame: FrameType, args: tuple[Any, ...], *_: Any) -> None:
        label = getattr(args[0], "__name__", "") or type(args[0]).__name__
        self.note_dark(f"the Triton kernel {label}", frame)

    def _started(self, names: FunctionNames) -> Callable[..., Any]:
        """Return a `Thread.start` that looks at what the thread calls while the step runs."""
        original, mine = threading.Thread.start, weakref.ref(self)

        def start(thread: threading.Thread) -> None:
            frame, run = sys._getframe(1), thread.run

            def told(what: str) -> None:
                darkness = mine()
                if darkness is not None:
                    darkness.note_dark(what, frame)

            def watched() -> None:
                with Elsewhere(names, thread, told, self._origins):
                    run()

            thread.run = watched  # type: ignore[method-assign]
            original(thread)

        return start


class Elsewhere(TorchFunctionMode):
    """In a thread that a captured step has started: tells of the first call of an operator there."""

    def __init__(
        self,
        names: FunctionNames,
        thread: threading.Thread,
        tell: Callable[[str], None],
        origins: Origins,
    ) -> None:
        super().__init__()
        self._names = names
        self._thread = thread
        self._tell: Callable[[str], None] | None = tell
        self._origins = origins

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Make the call."""
        result = func(*args, **(kwargs or {}))
        name = self._names[func]
        if name is not None:
            self._origins.know_all(result)
            if self._tell is not None:
                tell, self._tell = self._tell, None
                tell(in_thread(self._thread, name.key))
        return result


def _foreign_in(frame: FrameType) -> str:
    """Return the library through which a function hands memory on, "" where its module knows none."""
    for value in list(frame.f_globals.values()) + list(frame.f_locals.values()):
        kind = type(value)
        name = (
            value.__name__ if kind is type(sys) else getattr(value, "__module__", kind.__module__)
        )
        root = str(name).partition(".")[0] if isinstance(name, str) else ""
        if root in _FOREIGN or kind.__module__ in _FOREIGN:
            return root if root in _FOREIGN else kind.__module__
    return ""
