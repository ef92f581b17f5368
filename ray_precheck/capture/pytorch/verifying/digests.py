"""Digests of the bytes of tensors, and of the states of random generators.

Comes in: values as operators get and give them. Goes out: texts that are equal where every bit is. Called by
the tracing of a step. Nothing here moves a random state, passes through a mode or has a gradient.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import bytes_of
from ray_precheck.capture.pytorch.verifying.devices import device_module, devices_in_use
from ray_precheck.foreign import caught

_DEEPEST = 10
_BYTES = 8
_LEAVES = (torch.Tensor, bool, int, float, complex, str)
_TEXTS = TensorTexts(lambda _: "")


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which calls pass through no function mode."""
    found = private_parts.find(private_parts.NO_FUNCTION_MODE)
    return nullcontext() if found is None else found()


def digest_of(value: Any) -> str:
    """Return the digest of the tensors and plain values in a nested value.

    Of a tensor without memory in this process (meta, fake, not yet arrived) it has the dtype and shape.
    """
    found = hashlib.blake2b(digest_size=_BYTES)
    with unseen():
        for leaf in _leaves(value, 0):
            if isinstance(leaf, torch.Tensor):
                _add(found, leaf)
            else:
                found.update(f"{type(leaf).__name__} {leaf!r};".encode())
    return found.hexdigest()


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, _LEAVES):
        yield value
    elif depth > _DEEPEST:
        return
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each, depth + 1)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each, depth + 1)


def _add(found: "hashlib.blake2b", tensor: torch.Tensor) -> None:
    found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
    # A tensor that a transform has wrapped may refuse to be read.
    raw, _ = caught(lambda: _bytes(tensor))
    if raw is not None:
        found.update(raw)


def _bytes(tensor: torch.Tensor) -> Any:
    dense = _TEXTS.dense(tensor)
    if dense is None or not dense.numel():
        return None
    if dense.is_quantized:
        dense = dense.int_repr()
    return bytes_of(dense).data


def random_digests() -> dict[str, str]:
    """Return the digests of the states of the generators of torch, numpy and Python."""
    states: dict[str, Any] = {"the random state of torch": torch.get_rng_state()}
    for number in devices_in_use():
        states[f"the random state of device {number}"] = device_module().get_rng_state(number)
    numpy = sys.modules.get("numpy")
    digests = {name: digest_of(state) for name, state in states.items()}
    for name, state in (
        ("the random state of numpy", numpy and numpy.random.get_state()),
        ("the random state of Python", random.getstate()),
    ):
        digests[name] = hashlib.blake2b(
            repr(_words(state)).encode(), digest_size=_BYTES
        ).hexdigest()
    return digests


def random_digest() -> str:
    """Return one digest of the states of torch's generators, which is taken behind each operator."""
    return digest_of([torch.get_rng_state(), *map(device_module().get_rng_state, devices_in_use())])


def _words(state: Any) -> Any:
    """Return the state of numpy's generator with its array written out, that of others as it is."""
    if isinstance(state, tuple) and hasattr(state[1], "tobytes"):
        return (state[0], state[1].tobytes(), *state[2:])
    return state
