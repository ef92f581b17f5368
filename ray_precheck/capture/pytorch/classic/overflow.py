"""The hook that stops a training where NaN or infinity appears.

Comes in: calls and gradients. Goes out: an error that names the call and its layer, and a file of lines with
everything that the call got and gave. Called by the sink of `register_hook`.

An NPU has a status word that says whether anything overflowed. Elsewhere the values are looked at: a call
has overflowed if it gives NaN or infinity. Masks are no overflow: minus infinity may come from an argument
that has it, and either infinity and NaN from a number that the call was given.
"""

import json
import math
import os
import weakref
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from ray_precheck.capture.pytorch.classic.errors import OverflowFoundError
from ray_precheck.capture.pytorch.classic.kinds import Kind, Place
from ray_precheck.capture.pytorch.classic.lines import HookLines
from ray_precheck.capture.pytorch.classic.values import all_finite, all_lines, dense, places
from ray_precheck.capture.pytorch.names import CallName, names_of

# They leave in their result what was in the memory before.
_UNWRITTEN = names_of("empty_like new_empty new_empty_strided resize_as_")
_TRIES = 1000


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
            for tensor_line, where, other in all_lines(value, suffix):
                if tensor_line is not None:
                    file.write(tensor_line.text(place.name))
                else:
                    shown = json.dumps([f"{place.name}{where}", other], default=repr)
                    file.write(f"{shown}\n")
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
