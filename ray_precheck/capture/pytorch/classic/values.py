"""The values of tensors, as the hooks write them, and the hook that writes each call as lines of JSON.

Comes in: what a call got or gave. Goes out: its tensors by their place in it, and the values of each as
numbers; of `AccuracyLines` lines in the file that `set_dump_path` names, first those of what the call got,
then those of what it gave. Called by the hooks for each call.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ray_precheck.capture.pytorch.classic.errors import HookUsageError, tell_user
from ray_precheck.capture.pytorch.classic.kinds import Kind, Place
from ray_precheck.capture.pytorch.classic.lines import DUMP_FILE, Line
from ray_precheck.capture.pytorch.tensors.memory import array_of
from ray_precheck.capture.pytorch.tensors.text import TensorTexts

SAMPLED = 10
_DEEPEST = 10
_WIDE = (torch.float32, torch.float64)
_STANDARD = (torch.float16, torch.bfloat16, *_WIDE)
_unpacked = TensorTexts(lambda _: "").dense


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


def float_lines(value: Any, suffix: str, *, sample: bool) -> list[Line]:
    """Return the lines of the floating point tensors of a value that have a dimension.

    With `sample` a line has the first 10 values, the largest, the smallest and their mean, without it all
    values. Those of float64 are written as they are, all others as float32.
    """
    lines = []
    for place, each in places(value):
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim():
            found = dense(each)
            if found is not None:
                values = _sampled(found) if sample else as_array(found).reshape(-1).tolist()
                lines.append(Line(suffix + place, values, str(each.dtype), tuple(found.shape)))
    return lines


def _sampled(tensor: torch.Tensor) -> list[float]:
    """Return a tensor's first values, then its max, min and mean in its own dtype; an empty one has none."""
    first: list[float] = as_array(tensor.reshape(-1)[:SAMPLED]).tolist()
    if not tensor.numel():
        return first
    if tensor.dtype not in _STANDARD:  # torch reduces no float8
        tensor = tensor.float()
    ends = torch.stack((tensor.max(), tensor.min(), tensor.mean()))
    return first + [float(each) for each in as_array(ends)]


def all_lines(value: Any, suffix: str) -> list[tuple[Line | None, str, Any]]:
    """Return everything in a value: a line for a tensor, else None, the place, and what is no tensor."""
    found: list[tuple[Line | None, str, Any]] = []
    for place, each in places(value):
        if not isinstance(each, torch.Tensor):
            found.append((None, suffix + place, each))
            continue
        values = dense(each)
        if values is not None:
            flat = as_array(values).reshape(-1).tolist()
            line = Line(suffix + place, flat, str(each.dtype), tuple(values.shape))
            found.append((line, suffix + place, None))
    return found


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
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
        return float_lines(args, "_input", sample=self._sample)

    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Write the lines of a call."""
        for line in (*taken, *float_lines(output, "_output", sample=self._sample)):
            DUMP_FILE.write(place.name, line)
            if DUMP_FILE.failure:
                tell_user(
                    f"{DUMP_FILE.failure}; nothing is dumped any more, and the script goes on"
                )
                return
