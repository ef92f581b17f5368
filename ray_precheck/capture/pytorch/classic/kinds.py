"""The three hooks: lines of JSON, arrays of numpy, and an error where something overflows.

Comes in: a call of an operator, or the gradients that passed through one. Goes out: files, or an error that
names the call and its layer. Called by the sink of `register_hook`, and by the hooks where a script registers
them at a module itself.

`AsyncArrays` leaves the writing of `.npy` files to a thread, while the training goes on:

    16_Functional_relu_backward_input0_shape[2,1]_stride[1,1]_offset[0]_format[2].npy

An NPU has a status word that says whether anything overflowed. Elsewhere the values are looked at: a call
has overflowed if it gives NaN or infinity. Masks are no overflow: minus infinity may come from an argument
that has it, and either infinity and NaN from a number that the call was given.
"""

import atexit
import itertools
import json
import math
import os
import queue
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ray_precheck.capture.pytorch.classic.lines import (
    DUMP_FILE,
    HookLines,
    HookUsageError,
    Line,
    OverflowFoundError,
    tell_user,
)
from ray_precheck.capture.pytorch.tensors.memory import array_of
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.recording.recorder import CallName

# What moves, copies or converts a tensor, or fills one: it computes nothing that two devices could do
# differently. torch_npu.hooks had none of these either, so that a script may move its model and its data
# between two dumps.
_MOVES = frozenset(
    """
    to cpu cuda npu xpu ipu clone contiguous copy_ zero_ uniform_ random_ element_size
    float double half bfloat16 int long short char byte bool cfloat cdouble chalf
    """.split()
)
# Of the functions that make a tensor out of numbers those that torch_npu.hooks had; it had none of those
# that draw random numbers, which differ on each device.
_MAKERS = frozenset(
    """
    arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window linspace
    logspace ones range scalar_tensor sparse_coo_tensor tril_indices triu_indices
    """.split()
)
_SAMPLED = 10
_DEEPEST = 10
_WIDE = (torch.float32, torch.float64)
_STANDARD = (torch.float16, torch.bfloat16, *_WIDE)
_unpacked = TensorTexts(lambda _: "").dense
FEWEST, MOST = 3, 2048
_ND = 2  # ACL_FORMAT_ND: the elements lie as shape, stride and offset tell_user
# They leave in their result what was in the memory before.
_UNWRITTEN = frozenset("empty_like new_empty new_empty_strided resize_as_".split())
_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: its name ("Functional_linear_forward"), whether it is the backward pass of one,
    the layer that made it ("fc (Linear)"), and the lines of the program that led to it; the last two are
    empty where they are not known."""

    name: str
    is_backward: bool = False
    layer: str = ""
    stack: Callable[[], list[str]] = list


class Kind(ABC):
    """One of the three hooks, with its arguments."""

    def wants(self, name: CallName, got_tensor: bool) -> bool:
        """Return whether the calls of a function are looked at, given whether it got a tensor."""
        return name.name not in _MOVES if got_tensor else name.name in _MAKERS

    def ready(self, place: Place, in_model: bool) -> bool:
        """Return whether a call can be written."""
        return True

    @abstractmethod
    def before(self, args: Any) -> Any:
        """Take what must be taken before the call, because the call may change it."""

    @abstractmethod
    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Write a call; of a backward pass `args` are the gradients of the call's inputs, and `output` those
        that arrived at its outputs, as torch's hooks of modules have them."""

    def close(self) -> None:  # noqa: B027 (not all have something to finish)
        """Finish what is not written yet."""


def places(value: Any, suffix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what stands in a nested value, each with its place: ".0" in a tuple or list, ".1.0" in two.

    A dict counts as the list of its values, and is entered where it is an output.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list) and suffix.count(".") < _DEEPEST:
        for index, each in enumerate(value):
            yield from places(each, f"{suffix}.{index}")
    else:
        yield suffix, value


def dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor's values without its graph, None for one that has none (meta, fake, or inside of a
    transform of `torch.func`).

    Of a DTensor this is the local part, of a sparse tensor the values that it stores.
    """
    found = _unpacked(tensor)
    if found is None:
        return None
    values = found.detach().resolve_conj().resolve_neg()
    try:
        values.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a transform has wrapped it again
        return None
    return values


def _float_lines(value: Any, suffix: str, *, sample: bool) -> list[Line]:
    """Return the lines of the floating point tensors of a value that have a dimension.

    With `sample` a line has the first 10 values, the largest, the smallest and their mean, without it all
    values. Those of float64 are written as they are, all others as float32.
    """
    lines = []
    for place, each in places(value, suffix):
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim():
            found = dense(each)
            if found is not None:
                values = _sampled(found) if sample else _as_array(found).reshape(-1).tolist()
                lines.append(Line(place, values, str(each.dtype), tuple(found.shape)))
    return lines


def _sampled(tensor: torch.Tensor) -> list[float]:
    """Return a tensor's first values, then its max, min and mean in its own dtype; an empty one has none."""
    first: list[float] = _as_array(tensor.reshape(-1)[:_SAMPLED]).tolist()
    if not tensor.numel():
        return first
    if tensor.dtype not in _STANDARD:  # torch reduces no float8
        tensor = tensor.float()
    ends = torch.stack((tensor.max(), tensor.min(), tensor.mean()))
    return first + [float(each) for each in _as_array(ends)]


def _as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values in its shape as a numpy array in host memory.

    What numpy lacks (bfloat16, float8) becomes float32, as float16 does; complex values get a last
    dimension of their two parts.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point() and tensor.dtype not in _WIDE:
        tensor = tensor.float()
    return array_of(tensor.cpu())


def all_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinity; one without values has neither."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    found = dense(tensor)
    if found is None:
        return True
    if found.is_floating_point() and found.dtype not in _STANDARD:
        found = found.float()
    return bool(torch.isfinite(found).all())


class AccuracyLines(Kind):
    """Writes samples of the values, or with `sample=False` all of them."""

    def __init__(self, sample: bool) -> None:
        self._sample = sample

    def ready(self, place: Place, in_model: bool) -> bool:
        """Return whether a file was set.

        Raises:
            HookUsageError: it was not, and the call belongs to a registered model.
        """
        if not DUMP_FILE.is_set and in_model:
            raise HookUsageError(
                f"{place.name} was called by the registered model and there is no file to write it to;"
                " call set_dump_path before the model"
            )
        return DUMP_FILE.is_set and not DUMP_FILE.failure

    def before(self, args: Any) -> list[Line]:
        """Take the values of the arguments."""
        return _float_lines(args, "_input", sample=self._sample)

    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Write the lines of a call."""
        for line in (*taken, *_float_lines(output, "_output", sample=self._sample)):
            DUMP_FILE.write(place.name, line)
            if DUMP_FILE.failure:
                tell_user(
                    f"{DUMP_FILE.failure}; nothing is dumped any more, and the script goes on"
                )
                return


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
    return _as_array(tensor)


class OverflowCheck(Kind):
    """Raises an error at the first call that gives NaN or infinity."""

    def __init__(self) -> None:
        self._masks: dict[int, weakref.ref[torch.Tensor]] = {}

    def wants(self, name: CallName, got_tensor: bool) -> bool:
        """Return whether the calls of a function are looked at: those that compute from tensors."""
        return got_tensor and name.name not in _UNWRITTEN

    def before(self, args: Any) -> list[tuple[torch.Tensor, int]]:
        """Take the versions of the arguments, which tell_user afterwards whether the call changed them."""
        return [(each, _version(each)) for each in _tensors(args)]

    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Look at what a call gave.

        Raises:
            OverflowFoundError: it is NaN or infinite.
        """
        gave = [*_tensors(output), *(_tensors(args) if place.is_backward else ())]
        sick = [each for each in gave if not all_finite(each)]
        if not place.is_backward:
            sick = [each for each in sick if not self._is_mask(each, taken, args)]
        if sick:
            found = _written(place, args, output)
            raise OverflowFoundError(f"{_sentence(place, sick)}; {found}")

    def close(self) -> None:
        """Forget the masks."""
        self._masks.clear()

    def _is_mask(
        self, tensor: torch.Tensor, taken: list[tuple[torch.Tensor, int]], args: Any
    ) -> bool:
        """Return whether what is not finite in a result was given to the call, and remember it if so."""
        numbers = [each for _, each in places(args) if isinstance(each, float)]
        given = {_sign(each) for each in numbers if not math.isfinite(each)}
        if any(self._had_infinity(*each) for each in taken):
            given.add("-inf")
        if not _signs_in(tensor) <= given:
            return False
        self._masks[id(tensor)] = weakref.ref(tensor, self._forget(id(tensor)))
        return True

    def _had_infinity(self, tensor: torch.Tensor, version: int) -> bool:
        """Return whether an argument had an infinity before the call."""
        if version != _version(tensor):
            known = self._masks.get(id(tensor))
            return known is not None and known() is tensor
        return bool(_signs_in(tensor) & {"inf", "-inf"})

    def _forget(self, key: int) -> Any:
        masks = self._masks
        return lambda _: masks.pop(key, None)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for _, each in places(value) if isinstance(each, torch.Tensor)]


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor counts no changes
        return 0


def _sign(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _signs_in(tensor: torch.Tensor) -> set[str]:
    """Return what a tensor has that is not finite: nan, inf, -inf."""
    if all_finite(tensor):
        return set()
    values = dense(tensor)
    assert values is not None
    if values.is_complex():
        values = torch.view_as_real(values)
    values = values.float() if values.dtype is not torch.float64 else values
    found = {"nan": values.isnan(), "inf": values == math.inf, "-inf": values == -math.inf}
    return {name for name, where in found.items() if bool(where.any())}


def _sentence(place: Place, sick: list[torch.Tensor]) -> str:
    layer = f" in layer {place.layer}" if place.layer else ""
    what = "gradients" if place.is_backward else "an output"
    signs = sorted(set().union(*map(_signs_in, sick)))
    return f"overflow: {place.name}{layer} gave {what} with {' and '.join(signs)}"


def _written(place: Place, args: Any, output: Any) -> str:
    """Write what a call got and gave, and return where."""
    try:
        file = _new_file()
    except OSError as error:
        return f"its values cannot be written to {Path.cwd()}: {error.strerror or error}"
    try:
        for index, line in enumerate(place.stack()):
            file.write(json.dumps([f"{place.name}_stack_info.{index}", line]) + "\n")
        for suffix, value in (("_input", args), ("_output", output)):
            for where, each in places(value, suffix):
                if not isinstance(each, torch.Tensor):
                    file.write(json.dumps([f"{place.name}{where}", each], default=repr) + "\n")
                elif (found := dense(each)) is not None:
                    flat = _as_array(found).reshape(-1).tolist()
                    told = Line(where, flat, str(each.dtype), tuple(found.shape))
                    file.write(told.text(place.name))
    except OSError as error:
        return f"its values are cut off in {file.path}: {error.strerror or error}"
    finally:
        file.close()
    return f"what it got and gave stands in {file.path}"


def _new_file() -> HookLines:
    """Open a file of its own in the current folder, where another rank may open one in the same second."""
    stamp = datetime.now(tz=timezone.utc).strftime("%Y%m%d_%H%M%S")
    for number in range(_TRIES):
        more = f"_{os.getpid()}_{number}" if number else ""
        try:
            return HookLines(Path.cwd() / f"Overflow_info_{stamp}{more}.pkl", must_be_new=True)
        except FileExistsError:
            continue
    raise FileExistsError(f"Overflow_info_{stamp}.pkl and {_TRIES - 1} others exist")
