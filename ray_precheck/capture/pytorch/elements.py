"""What PyTorch adds to the elements of a record: its devices, dtypes and sizes.

Comes in: any Python value. Goes out: its JSON. Called for each argument, output and gradient of each call.
"""

from typing import Any, ClassVar

import torch

from ray_precheck.capture.pytorch import groups
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.capture.pytorch.tensors.storages import parts_of
from ray_precheck.capture.writing.elements import NULL, PLAIN, PlainElements
from ray_precheck.capture.writing.elements import statistics_text as statistics_text
from ray_precheck.capture.writing.text import array, quoted

# What msprobe writes of arguments with these names, whatever their type.
_DEVICES, _DTYPES = frozenset({"device"}), frozenset({"dtype", "output_dtype"})
_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
    torch.preserve_format: "preserve_format",
}


def _device(value: torch.device) -> str:
    return f'{{"type": "torch.device", "value": {quoted(f"{value.type}:{value.index}")}}}'


class Elements(PlainElements):
    """Writes values of a PyTorch program."""

    tensor = torch.Tensor
    plain: ClassVar = {
        **PLAIN,
        torch.dtype: lambda v: f'{{"type": "torch.dtype", "value": {quoted(str(v))}}}',
        torch.device: _device,
        torch.memory_format: lambda v: (
            f'{{"type": "torch.memory_format", "format": {quoted(_MEMORY_FORMATS.get(v, str(v)))}}}'
        ),
    }

    def keyword(self, name: str, value: Any, place: str) -> str:
        """Return the value of a keyword argument; some have one form whatever their type."""
        if value is None and name in _DEVICES:
            return '{"type": "torch.device"}'
        if name in _DTYPES:
            return f'{{"type": "torch.dtype", "value": {quoted(str(value))}}}'
        if name in _DEVICES and isinstance(value, int | str):
            shown = quoted(value) if isinstance(value, str) else repr(value)
            return f'{{"type": "torch.device", "value": {shown}}}'
        return super().keyword(name, value, place)

    def nested(self, value: Any, place: str, depth: int) -> str:
        """Return a value that holds others; a size is no list."""
        if isinstance(value, torch.Size):
            return f'{{"type": "torch.Size", "value": {array([repr(int(x)) for x in value])}}}'
        if isinstance(value, torch.ScriptObject):
            parts = parts_of(value)
            return NULL if parts is None else super().nested(parts, place, depth)
        told = groups.written(value, lambda tensor: self.of_tensor(tensor, place))
        return super().nested(value, place, depth) if told is None else told


def autocast_field(result: Any) -> str:
    """Return the fields that say in which dtype autocast lets operators compute on a device, and on which:
    torch's lists of operators differ."""
    for tensor in tensors_in(result):
        kind = "cpu" if tensor.is_cpu else tensor.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind):
            device = "" if kind == "cpu" else f', "autocast_device": "{kind}"'
            return f', "autocast": "{torch.get_autocast_dtype(kind)}"{device}'
    return ""
