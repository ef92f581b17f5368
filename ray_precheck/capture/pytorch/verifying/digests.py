"""Digests of the bytes of tensors, and of the states of random generators.

Comes in: values as operators get and give them. Goes out: texts that are equal where every bit is. Called by
the tracing of a step. Nothing here moves a random state, passes through a mode or has a gradient.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import bytes_of
from ray_precheck.capture.pytorch.verifying.devices import device_module, devices_in_use
from ray_precheck.capture.verifying.digests import Digests, other_random_digests
from ray_precheck.foreign import caught

_TEXTS = TensorTexts(lambda _: "")


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which calls pass through no function mode."""
    found = private_parts.find(private_parts.NO_FUNCTION_MODE)
    return nullcontext() if found is None else found()


def digest_of(value: Any) -> str:
    """Return the digest of the tensors and plain values in a nested value.

    Of a tensor without memory in this process (meta, fake, not yet arrived) it has the dtype and shape.
    """
    with unseen():
        return _DIGESTS.of(value)


def dense_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the dense tensor whose values a record has, None where it has none."""
    return _TEXTS.dense(tensor)


def _raw(tensor: torch.Tensor) -> Any:
    # A tensor that a transform has wrapped may refuse to be read.
    raw, _ = caught(lambda: _bytes(tensor))
    return raw


def _bytes(tensor: torch.Tensor) -> Any:
    dense = _TEXTS.dense(tensor)
    if dense is None or not dense.numel():
        return None
    if dense.is_quantized:
        dense = dense.int_repr()
    return bytes_of(dense).data


_DIGESTS = Digests(torch.Tensor, _raw)


def random_digests() -> dict[str, str]:
    """Return the digests of the states of the generators of torch, numpy and Python."""
    states: dict[str, Any] = {"the random state of torch": torch.get_rng_state()}
    for number in devices_in_use():
        states[f"the random state of device {number}"] = device_module().get_rng_state(number)
    return {name: digest_of(state) for name, state in states.items()} | other_random_digests()


def random_digest() -> str:
    """Return one digest of the states of torch's generators, which is taken behind each operator."""
    return digest_of([torch.get_rng_state(), *map(device_module().get_rng_state, devices_in_use())])
