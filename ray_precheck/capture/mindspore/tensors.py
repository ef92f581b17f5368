"""One tensor as JSON and, where the task is `tensor`, as a file.

Comes in: a tensor, and the name of its place. Goes out: its JSON, and a `.npy` file. Called for each tensor
of each call.

A tensor is looked at each time that it occurs: MindSpore's count of changes in place (`_version`) stays 0 on
the CPU, so nothing tells that a tensor still holds what it held.
"""

import zlib
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from ray_precheck.capture.measures.health import health_of, health_text
from ray_precheck.capture.measures.sketch import sketch
from ray_precheck.capture.mindspore.summary import summary_of, values_on_host
from ray_precheck.capture.writing.elements import statistics_text
from ray_precheck.capture.writing.sketches import SketchFile
from ray_precheck.capture.writing.text import quoted

# The parts of a layout across devices, and their names in a dump of msprobe.
_LAYOUT = (
    ("device_matrix", "Device Matrix"),
    ("alias_name", "Alias Name"),
    ("partial", "Partial"),
    ("tensor_map", "Tensor Map"),
    ("rank_list", "Rank List"),
)


class MindSporeTensors:
    """Writes tensors; into `folder`, too, if one is given."""

    def __init__(
        self, folder: Path | None, with_checksum: bool, sketches: SketchFile | None = None
    ) -> None:
        self._folder = folder
        self._with_checksum = with_checksum
        self._sketches = sketches
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def text(self, tensor: ms.Tensor, name: str) -> str:
        """Return a tensor as JSON.

        Raises:
            OSError: its file or its sketch cannot be written.
        """
        values = values_on_host(tensor)
        text = (
            f'"type": "mindspore.Tensor", "dtype": "{tensor.dtype}",'
            f' "shape": {list(tensor.shape)}, {statistics_text(summary_of(values))}'
        )
        layout = getattr(tensor, "layout", None)
        if layout is not None:
            text += f', "layout": {_layout_text(layout)}'
        if values is None:
            return f"{{{text}}}"
        if self._sketches is not None and values.size:
            health = health_text(health_of(values, str(tensor.dtype).lower()))
            text += f", {self._sketches.append(sketch(values))}"
            text += "" if health is None else f', "health": {health}'
        if self._with_checksum:
            text += f', "md5": "{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"'
        if self._folder is not None:
            np.save(self._folder / f"{name}.npy", values, allow_pickle=False)
            text += f', "data_name": {quoted(f"{name}.npy")}'
        return f"{{{text}}}"


def _layout_text(layout: Any) -> str:
    found = ((title, getattr(layout, name, None)) for name, title in _LAYOUT)
    parts = [
        f"{quoted(title)}: {quoted(str(value))}" for title, value in found if value is not None
    ]
    return "{" + ", ".join(parts) + "}"
