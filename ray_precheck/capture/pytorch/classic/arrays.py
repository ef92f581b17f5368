"""The hook that writes each tensor as a file of numpy, while the training goes on.

Comes in: calls and gradients. Goes out: `.npy` files, written by a thread. Called by the sink of
`register_hook`.

    16_Functional_relu_backward_input0_shape[2,1]_stride[1,1]_offset[0]_format[2].npy
"""

import atexit
import itertools
import os
import queue
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ray_precheck.capture.pytorch.classic.errors import HookUsageError, tell_user
from ray_precheck.capture.pytorch.classic.kinds import Kind, Place
from ray_precheck.capture.pytorch.classic.values import as_array, dense, places
from ray_precheck.capture.pytorch.tensors.memory import array_of

FEWEST, MOST = 3, 2048
_ND = 2  # ACL_FORMAT_ND: the elements lie as shape, stride and offset tell_user


class AsyncArrays(Kind):
    """Copies tensors and leaves it to a thread to write them into a folder.

    At most `capacity` groups (what one call got, or gave) wait for the thread; then a call waits, too.
    """

    def __init__(self, folder: str | os.PathLike[str], capacity: int) -> None:
        if type(capacity) is not int or not FEWEST <= capacity <= MOST:
            raise HookUsageError(f"capacity is {capacity!r}; expected {FEWEST} to {MOST}")
        self._writer = _Writer(_made(folder), capacity)
        self._numbers = itertools.count()

    def ready(self, place: Place, in_model: bool) -> bool:
        """Return whether the files can still be written."""
        return not self._writer.failed

    def before(self, args: Any) -> list["_Copy"]:
        """Copy the arguments."""
        return _copies(args)

    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Hand what a call got and gave to the thread."""
        for what, copies in (("input", taken), ("output", _copies(output))):
            if copies:
                self._writer.put(f"{next(self._numbers)}_{place.name}_{what}", copies)

    def close(self) -> None:
        """Wait until all files are written."""
        self._writer.close()


class _Copy(NamedTuple):
    """A copy of a tensor on its own device, how the tensor lay in memory, and what to wait for before the
    copy is read."""

    values: torch.Tensor
    layout: str
    made: Any


def _copies(value: Any) -> list[_Copy]:
    found = []
    for _, each in places(value):
        if isinstance(each, torch.Tensor):
            values = dense(each)
            if values is not None:
                copy = values.clone(memory_format=torch.contiguous_format)
                found.append(_Copy(copy, _layout_of(values), _event_of(copy)))
    return found


def _event_of(tensor: torch.Tensor) -> Any:
    """Return an event of the tensor's device that has happened when its values are there, None on a CPU."""
    event_type = getattr(getattr(torch, tensor.device.type, None), "Event", None)
    if tensor.device.type == "cpu" or event_type is None:
        return None
    event = event_type()
    event.record()
    return event


def _layout_of(tensor: torch.Tensor) -> str:
    shape, stride = (",".join(map(str, each)) for each in (tensor.shape, tensor.stride()))
    return f"_shape[{shape}]_stride[{stride}]_offset[{tensor.storage_offset()}]_format[{_format_of(tensor)}]"


def _format_of(tensor: torch.Tensor) -> int:
    """Return the number of a tensor's format on an NPU, elsewhere ND."""
    ask = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    return _ND if ask is None or tensor.device.type != "npu" else int(ask(tensor))


def _made(folder: str | os.PathLike[str]) -> Path:
    target = Path(os.path.realpath(folder))
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "it, or a part of it, is a file" if is_file else error.strerror or str(error)
    else:
        if os.access(target, os.W_OK | os.X_OK):
            return target
        reason = "Permission denied"
    raise HookUsageError(
        f"the arrays cannot be written to {target}: {reason}; give register_hook the path of a folder"
        " that can be written"
    )


class _Writer:
    """The thread that writes, and the queue to it."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.failed = False
        self._folder = folder
        self._queue: queue.Queue[tuple[str, list[_Copy]] | None] = queue.Queue(capacity)
        self._thread: threading.Thread | None = None

    def put(self, name: str, copies: list[_Copy]) -> None:
        """Hand over what one call got, or gave."""
        if self._thread is None:
            # Python ends such a thread in the middle of a file, so `close` waits for it before.
            self._thread = threading.Thread(target=self._run, name="ray-precheck npy", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._queue.put((name, copies))

    def close(self) -> None:
        """Wait until everything is written, and end the thread; in a forked child there is none."""
        thread, self._thread = self._thread, None
        atexit.unregister(self.close)
        if thread is not None and thread.is_alive():
            self._queue.put(None)
            thread.join()

    def _run(self) -> None:
        for name, copies in iter(self._queue.get, None):
            if self.failed:
                continue
            try:
                self._write(name, copies)
            except OSError as error:
                self.failed = True
                tell_user(
                    f"{self._folder} cannot be written: {error.strerror or error}; nothing is dumped any"
                    " more, and the script goes on"
                )

    def _write(self, name: str, copies: Iterable[_Copy]) -> None:
        for index, copy in enumerate(copies):
            if copy.made is not None:
                copy.made.synchronize()
            target = self._folder / f"{name}{index}{copy.layout}.npy"
            part = self._folder / f".{os.getpid()}.part"
            try:
                with part.open("wb") as file:
                    np.save(file, _saved(copy.values), allow_pickle=False)
                os.replace(part, target)
            except OSError:
                part.unlink(missing_ok=True)
                raise


def _saved(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as numpy has it: float16 and complex types stay, bfloat16 and float8 are widened."""
    if tensor.dtype is torch.float16 or tensor.is_complex():
        return array_of(tensor.cpu())
    return as_array(tensor)
