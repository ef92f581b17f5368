"""The tensors that a call of torch has changed.

Comes in: the name of a call and the tensors that it got. Goes out: those that it may have changed. Called
by the recorder after each call.
"""

from typing import Any

import torch

from ray_precheck.capture.changes import Given
from ray_precheck.capture.pytorch.names import CallName
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.tensors.text import address_of

_NO_VERSION = -1


def version_of(tensor: torch.Tensor) -> int:
    """Return the version of a tensor; an inference tensor has none."""
    return _NO_VERSION if tensor.is_inference() else tensor._version


def touched_by(name: CallName, given: list[Given]) -> list[Given]:
    """Return the tensors that have another version since the call, and those that it may change without."""
    silent = name.silent
    return [
        each
        for each in given
        if version_of(each.tensor) != each.version or (silent and each.root in silent)
    ]


def outputs_among(
    name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> frozenset[int]:
    """Return the memory of the tensors that a call changes as its outputs: the first argument in place,
    `out`, and what it returns. A view of them has changed with them."""
    first = args[:1] if name.in_place else ()
    return frozenset(map(address_of, tensors_in((first, kwargs.get("out"), output)))) - {0}
