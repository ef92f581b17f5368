"""What a captured step of a MindSpore program does out of the capture's sight.

Comes in: the calls of a step, from `calls` and the recorder, and the tensors that they get and give. Goes
out: notes of dark places: compiled functions, operators in other threads, values that went through numpy;
and, whatever made them (an extension, MindSpore's C++ called directly), tensors that came into a recorded
call and were made in this step by nobody who was seen. Put on by `calls` for each captured step.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

import mindspore as ms

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.gradients import node_of
from ray_precheck.capture.mindspore.patches import Patches
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder, tensors_within
from ray_precheck.capture.recording.origins import Origins, Strangers, followed, in_thread
from ray_precheck.capture.recording.recorder import SeenCall

# What makes a tensor of data without its constructor.
_OF_DATA = ("from_numpy", "from_dlpack", "convert_bytes_to_tensor")
# What hands on a tensor, or a part of it, and is no operator.
_HAND_ON = ("value", "move_to", "to_coo", "to_csr")


class TensorOrigins(Origins):
    """Which tensors are known; MindSpore has no object for the memory of one."""

    tensor: ClassVar[type] = ms.Tensor

    def anchor(self, tensor: ms.Tensor) -> ms.Tensor:
        """Return the tensor itself."""
        return tensor


class MindSporeDarkness(Strangers):
    """Takes note of what happens out of sight in one step."""

    def __init__(self, recorder: MindSporeRecorder) -> None:
        super().__init__(recorder, TensorOrigins())
        self._backwards = 0
        self._began_in = self._runs_in = threading.get_ident()
        self._has_begun = False
        # Where the threads that a step has started were started, and of which it is told already.
        self._started: weakref.WeakKeyDictionary[threading.Thread, FrameType] = (
            weakref.WeakKeyDictionary()
        )
        self._told: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def in_backward(self) -> bool:
        """Return whether `ms.grad` or its like runs a backward pass."""
        return self._backwards > 0

    def node_name(self, tensor: ms.Tensor) -> str | None:
        """Return the name of a tensor's node; nobody computes a parameter."""
        if isinstance(tensor, ms.Parameter):
            return None
        node = node_of(tensor)
        name = getattr(node, "name", "")
        return str(name() if callable(name) else name)

    def got(self, call: SeenCall) -> None:
        """Take what a recorded call gets."""
        origins, given = self._origins, tensors_within((call.args, call.kwargs))
        self.unknown = [each for each in given if not origins.knows(each)]
        if self.unknown:
            unknown = self.unknown
            self.ask(call.name.key, call.frame)
            origins.know_all(unknown)

    def gave(self, result: Any) -> None:
        """Take what is no stranger where it comes into a call."""
        for each in tensors_within(result):
            self._origins.know(each)

    def is_elsewhere(self) -> bool:
        """Return whether this thread is not the step's: that in which it began, or, while that calls nothing,
        the first that calls."""
        here = threading.get_ident()
        if here == self._began_in or not self._has_begun:
            self._runs_in, self._has_begun = here, True
        return here != self._runs_in

    def elsewhere(self, call: SeenCall) -> Any:
        """Make a call in another thread, and tell of the first one there."""
        thread = threading.current_thread()
        if thread not in self._told:
            self._told.add(thread)
            where = self._started.get(thread, call.frame)
            self._safely(lambda: self.note_dark(in_thread(thread, call.name.key), where))
        result = call.run()
        self.gave(result)
        return result

    @contextmanager
    def watched(self, patches: Patches) -> Iterator[None]:
        """See what is done out of sight, for the time of a captured step."""
        patches.put(ms.Tensor, "__init__", followed(ms.Tensor.__init__, self._constructed))
        for name in (*_OF_DATA, *_HAND_ON):
            original, is_of_data = getattr(ms.Tensor, name, None), name in _OF_DATA
            if original is not None:
                told = followed(original, self._of_data if is_of_data else self._known)
                patches.put(ms.Tensor, name, staticmethod(told) if is_of_data else told)
        executor: Any = type(private_parts.find(private_parts.MINDSPORE_EXECUTOR))
        if hasattr(executor, "grad"):
            patches.put(executor, "grad", self._backward(executor.grad))
        patches.put(ms.Tensor, "asnumpy", followed(ms.Tensor.asnumpy, self._became_array))
        patches.put(threading.Thread, "start", self._start(threading.Thread.start))
        self._origins.begin()
        try:
            yield
            self.settle()
        finally:
            self._started.clear()  # frames hold what the program has
            self._origins.end()

    def _constructed(
        self, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any], _: None
    ) -> None:
        self._origins.know(args[0])
        self._came(args[1] if len(args) > 1 else kwargs.get("input_data"), frame)

    def _of_data(
        self, frame: FrameType, args: tuple[Any, ...], _: dict[str, Any], tensor: ms.Tensor
    ) -> None:
        self._origins.know(tensor)
        self._came(args[0] if args else None, frame)

    def _came(self, array: Any, frame: FrameType) -> None:
        """Take what the program makes a tensor of."""
        if self._is_program(frame):
            self._safely(lambda: self.from_array(array, frame))

    def _became_array(
        self, frame: FrameType, _: tuple[Any, ...], __: dict[str, Any], array: Any
    ) -> None:
        if self._is_program(frame) and array.dtype.kind in "fc":
            address = array.__array_interface__["data"][0]
            self._safely(lambda: self.leaves(address, frame))

    def _is_program(self, frame: FrameType) -> bool:
        """Return whether a frame is the program's own, none of MindSpore or of the capture."""
        return self._recorder.program_frame(frame) is frame

    def _known(self, *call: Any) -> None:
        self.gave(call[-1])

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            self._backwards += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._backwards -= 1
            self.gave(result)
            return result

        return grad

    def _start(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            self._started[thread] = sys._getframe(1)
            original(thread)

        return start
