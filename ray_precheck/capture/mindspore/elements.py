"""What MindSpore adds to the elements of a record: its dtypes.

Comes in: any Python value. Goes out: its JSON. Called for each argument, output and gradient of each call,
and for the values that a script saves by name.
"""

from pathlib import Path
from typing import Any, ClassVar

import mindspore as ms
from mindspore import mint

from ray_precheck.capture.mindspore.tensors import MindSporeTensors
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.writing.elements import BASES, NULL, PlainElements
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.capture.writing.saved import FrameworkValues
from ray_precheck.capture.writing.text import mapping, quoted

# Every dtype is of a class of its own below this one.
_DTYPE = type(ms.float32).__mro__[1]


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
