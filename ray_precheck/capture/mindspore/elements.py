"""One argument or output of a call of MindSpore as JSON and, where the settings say so, a tensor's file.

Comes in: any Python value, and the name of its place. Goes out: its JSON, and `.npy` files, or those
of safetensors. Called for each argument, output and gradient of each call, and for the values that a script
saves by name.

A tensor is looked at each time that it occurs: MindSpore's count of changes in place (`_version`) stays 0 on
the CPU, so nothing tells that a tensor still holds what it held. What is cut, summed and saved are its values
on the host, bfloat16 as float32.
"""

from pathlib import Path
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import mint

from ray_precheck.capture.recording.measures import (
    array_structure,
    chosen_part,
    crc32_text,
    raw_bytes,
    xor_text,
)
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.elements import (
    BASES,
    HAS_NAN,
    NULL,
    FrameworkValues,
    PlainElements,
    health_field,
    mapping,
    quoted,
    statistics_text,
)
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.dump.safetensors import NAMES, SUFFIX, save_values
from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics.sketch import sketch
from ray_precheck.numerics.statistics import health_of, summary_of

# The parts of a layout across devices, and their names in a dump of msprobe.
_LAYOUT = (
    ("device_matrix", "Device Matrix"),
    ("alias_name", "Alias Name"),
    ("partial", "Partial"),
    ("tensor_map", "Tensor Map"),
    ("rank_list", "Rank List"),
)
# numpy on the host has no such type.
_WITHOUT_VALUES = frozenset({"Float8E4M3FN", "Float8E5M2", "HiFloat8", "Int4", "QInt4x2"})
# Every dtype is of a class of its own below this one.
_DTYPE = type(ms.float32).__mro__[1]


class MindSporeTensors:
    """Writes tensors; into `folder`, too, if the settings save some."""

    def __init__(
        self, settings: CaptureSettings, folder: Path, sketches: SketchFile | None = None
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._sketches = sketches
        self._file_bytes = 0
        if settings.saves_tensors:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def written_bytes(self) -> int:
        """How many bytes of files and sketches were written."""
        return self._file_bytes + (0 if self._sketches is None else self._sketches.size)

    def text(
        self,
        tensor: ms.Tensor,
        name: str,
        more: str = "",
        *,
        is_saved: bool,
        look: str | None = None,
    ) -> str:
        """Return a tensor as JSON, with `more` of its fields; `look` says what of its structure is looked at.

        Raises:
            OSError: its file or its sketch cannot be written.
        """
        values, shape = values_on_host(tensor), tuple(tensor.shape)
        if values is not None and self._settings.slices:
            part = chosen_part(shape, self._settings.slices)
            values = values if part is None else values[part]
            shape = values.shape
        text = (
            f'"type": "mindspore.Tensor", "dtype": "{tensor.dtype}",'
            f' "shape": {list(shape)}, {self._values_text(values)}{more}'
        )
        if values is not None:
            text += _memory_text(tensor)
        layout = getattr(tensor, "layout", None)
        if layout is not None:
            text += f', "layout": {_layout_text(layout)}'
        if values is None:
            return f"{{{text}}}"
        nan = HAS_NAN in text
        if look is not None or nan:
            text += array_structure(values, look, nan)
        if self._sketches is not None and values.size:
            text += f", {self._sketches.append(sketch(values))}"
            text += health_field(health_of(values, str(tensor.dtype).lower()))
        if is_saved:
            text += f', "data_name": {quoted(self._save(values, name, str(tensor.dtype).lower()))}'
            self._file_bytes += values.nbytes
        return f"{{{text}}}"

    def _save(self, values: np.ndarray[Any, Any], name: str, dtype: str) -> str:
        """Write the values of a tensor of a dtype, and return the name of their file.

        Raises:
            OSError: it cannot be written.
        """
        if self._settings.as_safetensors and dtype in NAMES:
            save_values(self._folder / f"{name}{SUFFIX}", dtype, values)
            return f"{name}{SUFFIX}"
        np.save(self._folder / f"{name}.npy", values, allow_pickle=False)
        return f"{name}.npy"

    def _values_text(self, values: np.ndarray[Any, Any] | None) -> str:
        """Return what the summary mode says of values on the host."""
        mode = self._settings.summary_mode
        if mode == "xor":
            return f'"md5": {"null" if values is None else _xor_text(values)}'
        text = statistics_text(summary_of(values))
        if mode == "md5" and values is not None:
            text += f', "md5": {crc32_text(raw_bytes(values))}'
        return text


def values_on_host(tensor: ms.Tensor) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor on the host, bfloat16 as float32; None where there are none.

    A parameter whose initial values are not drawn yet has none: to draw them would move the random state.
    """
    if tensor.has_init or str(tensor.dtype) in _WITHOUT_VALUES:
        return None
    values = np.asarray(tensor.asnumpy())
    return values.astype(np.float32) if tensor.dtype == ms.bfloat16 else values


def _xor_text(values: np.ndarray[Any, Any]) -> str:
    return xor_text(raw_bytes(values), None if values.ndim else values.item())


def _memory_text(tensor: ms.Tensor) -> str:
    """Return the fields that say how a tensor lies in its memory; "" for a contiguous one at the
    beginning of its own."""
    text = "" if tensor.is_contiguous() else f', "stride": {list(tensor.stride())}'
    offset = tensor.storage_offset()
    return f'{text}, "offset": {offset}' if offset else text


def _layout_text(layout: Any) -> str:
    found = ((title, getattr(layout, name, None)) for name, title in _LAYOUT)
    parts = [
        f"{quoted(title)}: {quoted(str(value))}" for title, value in found if value is not None
    ]
    return "{" + ", ".join(parts) + "}"


def _dtype(value: Any) -> str:
    return f'{{"type": "mindspore.dtype", "value": {quoted(str(value))}}}'


class MindSporeElements(PlainElements):
    """Writes values of a MindSpore program."""

    tensor = ms.Tensor
    bases: ClassVar = ((_DTYPE, _dtype), *BASES)

    def keyword(self, name: str, value: Any, place: str) -> str:
        """Return the value of a keyword argument; a dtype may be given as a text."""
        if name == "dtype" and isinstance(value, str):
            return _dtype(value)
        return super().keyword(name, value, place)

    def nested(self, value: Any, place: str, depth: int) -> str:
        """Return a value that holds others; one end of an exchange between ranks is an object."""
        if isinstance(value, mint.distributed.P2POp):
            return mapping(
                [
                    ("class_type", '"mindspore.mint.distributed.P2POp"'),
                    ("tensor", self.one(value.tensor, f"{place}.tensor", depth + 1)),
                    ("op", quoted(getattr(value.op, "__name__", str(value.op)))),
                    ("peer", NULL if value.peer is None else repr(int(value.peer))),
                    ("tag", repr(int(value.tag or 0))),
                    ("group", NULL if value.group is None else quoted(str(value.group))),
                ]
            )
        return super().nested(value, place, depth)


class SavedMindSporeTensors(FrameworkValues):
    """What MindSpore says of the values that a script saves by name in one step."""

    framework = "mindspore"

    def __init__(self, settings: CaptureSettings, folder: Path) -> None:
        super().__init__()
        self._is_saved = settings.saves_tensors
        self._texts = MindSporeTensors(settings, folder / TENSORS)
        self.elements = MindSporeElements(self._tensor)

    def _tensor(self, tensor: ms.Tensor, place: str) -> str:
        return self._texts.text(tensor, place, is_saved=self._is_saved)
