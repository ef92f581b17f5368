"""The tensors that a call of torch has changed.

Comes in: the name of a call and the tensors that it got. Goes out: those that it may have changed. Called
by the recorder after each call.
"""

from typing import Any

import torch

from ray_precheck.capture.pytorch.names import CallName
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.tensors.text import address_of
from ray_precheck.capture.recording.changes import Given, given_of

_NO_VERSION = -1  # of inference tensors


def noted(tensor: torch.Tensor, place: str, fields: str) -> Given:
    """Return a tensor of a call with its version and what is known of it."""
    version = _NO_VERSION if tensor.is_inference() else tensor._version
    return given_of((tensor, version, place, fields))


def touched_by(name: CallName, given: list[Given]) -> list[Given]:
    """Return the tensors that have another version since the call, and those that it may change without."""
    silent = name.silent
    # Attributes of a named tuple take longer than places, and nearly all calls touch nothing.
    return [
        each
        for each in given
        if (_NO_VERSION if each[0].is_inference() else each[0]._version) != each[1]
        or (silent and each.root in silent)
    ]


def outputs_among(
    name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> frozenset[int]:
    """Return the memory of the tensors that a call changes as its outputs: the first argument in place,
    `out`, and what it returns. A view of them has changed with them."""
    first = args[:1] if name.in_place else ()
    return frozenset(map(address_of, tensors_in((first, kwargs.get("out"), output)))) - {0}
