"""From which random state a call draws.

Comes in: a call that is about to be made. Goes out: the field `generator` of its record, a CRC-32 of the
state of its generator, where it draws with these arguments: ranks whose dropout has the same one have the
same mask. Called by the recorder for each recorded call.
"""

import zlib
from typing import Any

import torch

from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.foreign import caught
from ray_precheck.operators.drawing import DRAWING, Drawing, DrawsIf, Never

# By the names of calls without their numbers, such as `Functional.dropout`; most draw nothing.
_KNOWN: dict[str, Drawing | None] = {}


def draws(call: SeenCall) -> bool:
    """Return whether a call draws random numbers with its arguments."""
    name = call.name.key
    try:
        drawing = _KNOWN[name]
    except KeyError:
        drawing = _KNOWN[name] = DRAWING.of(name, "pytorch")
    return drawing is not None and _draws(drawing, call.args, call.kwargs)


def generator_field(call: SeenCall) -> str:
    """Return the field of the random state that a call begins with, "" where it cannot be read.

    The state of a CPU's generator is 5056 bytes, of which this takes 10 us; that of an accelerator is its
    seed and its offset, which the host knows.
    """
    digest, _ = caught(lambda: zlib.crc32(_generator(call).get_state().numpy()))
    return "" if digest is None else f', "generator": "{digest:08x}"'


def _draws(drawing: Drawing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if not isinstance(drawing, DrawsIf):
        return not isinstance(drawing, Never)
    names = drawing.names.split()

    def given(name: str, default: Any) -> Any:
        for word in name.split("|"):
            if word in kwargs:
                return kwargs[word]
        place = names.index(name)
        return args[place] if place < len(args) else default

    if drawing.training is not None and not given(drawing.training, drawing.default_training):
        return False
    if drawing.needs_layers and given("num_layers", 1) == 1:
        return False
    probability = drawing.probability
    return probability is None or given(probability, drawing.default_probability) != 0


def _generator(call: SeenCall) -> Any:
    """Return the generator of a call: its own, else that of the device of its first tensor, or of the one
    that it names."""
    own = call.kwargs.get("generator")
    if own is not None:
        return own
    tensor = next((each for each in call.args if isinstance(each, torch.Tensor)), None)
    named = call.kwargs.get("device")
    if named is None and tensor is not None:
        device = tensor.device
    else:
        device = torch.device(torch.get_default_device() if named is None else named)
    if device.type == "cpu":
        return torch.default_generator
    accelerator = getattr(torch, device.type)
    number = accelerator.current_device() if device.index is None else device.index
    return accelerator.default_generators[number]
