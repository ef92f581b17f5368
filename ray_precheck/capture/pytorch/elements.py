"""What PyTorch adds to the elements of a record: its devices, dtypes, sizes and process groups.

Comes in: any Python value. Goes out: its JSON. Called for each argument, output and gradient of each call,
and for the values that a script saves by name.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as distributed

from ray_precheck.capture.pytorch.tensors.files import CapturedFiles
from ray_precheck.capture.pytorch.tensors.text import TensorTexts, parts_of, tensors_in
from ray_precheck.capture.pytorch.tensors.values import sliced, values_look
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.elements import (
    NULL,
    PLAIN,
    FrameworkValues,
    PlainElements,
    array,
    mapping,
    quoted,
)
from ray_precheck.capture.writing.log import TENSORS

# What Megatron notes at a parameter: whether and in which dimension it is a rank's part of a larger one,
# whether its gradient is a partial sum of sequence-parallel ranks, and `allreduce`, which is false of
# the weights of experts, whose gradients are not summed over all data-parallel ranks.
_MARKS = ("tensor_model_parallel", "partition_dim", "sequence_parallel", "allreduce")
# What msprobe writes of arguments with these names, whatever their type.
_DEVICES, _DTYPES = frozenset({"device"}), frozenset({"dtype", "output_dtype"})
# Of lists of so many values tensors are written together.
_MANY = 8
_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
    torch.preserve_format: "preserve_format",
}


def _device(value: torch.device) -> str:
    return f'{{"type": "torch.device", "value": {quoted(f"{value.type}:{value.index}")}}}'


class Elements(PlainElements):
    """Writes values of a PyTorch program; `of_many` writes those of a long list together, "" for others."""

    tensor = torch.Tensor
    plain: ClassVar = {
        **PLAIN,
        torch.dtype: lambda v: f'{{"type": "torch.dtype", "value": {quoted(str(v))}}}',
        torch.device: _device,
        torch.memory_format: lambda v: (
            f'{{"type": "torch.memory_format", "format": {quoted(_MEMORY_FORMATS.get(v, str(v)))}}}'
        ),
    }

    def __init__(
        self,
        of_tensor: Callable[[Any, str], str],
        of_many: Callable[[Sequence[Any], str], list[str]] | None = None,
    ) -> None:
        super().__init__(of_tensor)
        self._of_many = of_many
        # What the extension is told of a call whose values it writes; None where it writes none.
        self.wishes: tuple[Any, ...] | None = None
        self.compiled: Any = None

    def arguments(self, values: tuple[Any, ...], place: str) -> str:
        """Return an array of arguments."""
        if self.wishes is None:
            return super().arguments(values, place)
        text: str = self.compiled.arguments(values, place, self.wishes)
        return text

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
        if type(value) is list and len(value) >= _MANY and self._of_many is not None:
            texts = self._of_many(value, place)
            return array(
                [
                    text or self.one(each, f"{place}.{index}", depth + 1)
                    for index, (each, text) in enumerate(zip(value, texts, strict=True))
                ]
            )
        told = _of_collective(value, lambda tensor: self.of_tensor(tensor, place))
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


def marks_field(parameter: torch.Tensor) -> str:
    """Return the field of Megatron's marks of a parameter; "" where it has none."""
    noted = vars(parameter)
    if not noted:
        return ""
    marks = {word: noted[word] for word in _MARKS if isinstance(noted.get(word), int)}
    return f', "parallel": {json.dumps(marks)}' if marks else ""


class SavedTorchTensors(FrameworkValues):
    """What PyTorch says of the values that a script saves by name in one step."""

    framework = "pytorch"

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        super().__init__()
        self._settings = settings
        self._texts = TensorTexts(values_look(settings.summary_mode)[0])
        self.elements = Elements(self._tensor)
        self._files = None
        if settings.saves_tensors:
            self._files = CapturedFiles(folder / TENSORS, as_safetensors=settings.as_safetensors)

    def on_gradient(self, tensor: torch.Tensor, take: Callable[[torch.Tensor], None]) -> None:
        """Let `take` have the gradient of a tensor that requires one."""
        if tensor.requires_grad:
            super().on_gradient(tensor, take)

    def _tensor(self, tensor: torch.Tensor, place: str) -> str:
        if self._settings.slices:
            tensor = sliced(tensor, self._settings.slices)
        fields = self._texts.fields(tensor)
        dense = self._texts.dense(tensor) if self._files is not None else None
        dense = self._texts.saved(tensor, dense)
        if self._files is None or dense is None:
            return f"{{{fields}}}"
        return f'{{{fields}, "data_name": {quoted(self._files.save(dense, place))}}}'


def group_text(group: Any) -> str:
    """Return a process group as JSON, as msprobe has it: its ranks, and CRC-32 of their list."""
    try:
        ranks = distributed.get_process_group_ranks(group)
    except (ValueError, RuntimeError, KeyError):  # this process is not in it, or it is destroyed
        return '{"type": "torch.ProcessGroup"}'
    identity = zlib.crc32(str(ranks).encode())
    return f'{{"type": "torch.ProcessGroup", "group_ranks": {ranks}, "group_id": "{identity:08x}"}}'


def _p2p_text(operation: Any, tensor_text: Callable[[torch.Tensor], str]) -> str:
    """Return one entry of a batch of sends and receives as JSON."""
    return mapping(
        [
            ("class_type", '"torch.distributed.P2POp"'),
            ("tensor", tensor_text(operation.tensor)),
            ("op", quoted(operation.op.__name__)),
            ("peer", str(operation.peer)),
            ("tag", str(operation.tag)),
            ("group", group_text(operation.group or distributed.group.WORLD)),
        ]
    )


def _of_collective(value: Any, tensor_text: Callable[[torch.Tensor], str]) -> str | None:
    """Return an argument that only collectives have as JSON, None for any other value."""
    if not distributed.is_available():
        return None
    if isinstance(value, distributed.ProcessGroup):
        return group_text(value)
    if isinstance(value, distributed.ReduceOp | distributed.ReduceOp.RedOpType):
        # An object (a sum of scaled values, say) would show its address.
        word = quoted(str(getattr(value, "op", value)))
        return f'{{"type": "torch.distributed.ReduceOp", "value": {word}}}'
    if isinstance(value, distributed.P2POp):
        return _p2p_text(value, tensor_text)
    return None
