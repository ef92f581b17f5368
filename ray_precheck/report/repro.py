"""A Python script that shows the failure of one saved API, without ray_precheck.

Comes in: the JSON that `-save_error_data` has left. Goes out: the text of a script of one screen, which
needs the framework and NumPy, and the files beside the JSON. Called by the command `repro`.

The script runs the call forward and backward on the saved inputs and compares with the saved results
of the bench. What the run judged by another rule than the default one fails there where it is at least
half as far off as it was in the run: the other rules need more than the script has.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from ray_precheck.dump.decode import decode_record
from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.report.repro_text import FRAMES, only_needed
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    MappingSpec,
    SequenceSpec,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)
from ray_precheck.store.error_data import ErrorData, load_error_data

# Where the functions of a prefix are, in the words of a script.
_ROOTS = {
    "pytorch": {
        "Functional": "torch.nn.functional.",
        "Tensor": "torch.Tensor.",
        "Torch": "torch.",
        "VF": "torch.",
        "NPU": "torch_npu.",
        "Aten": "torch.ops.aten.",
    },
    "mindspore": {
        "Mint": "ms.mint.",
        "MintFunctional": "ms.mint.nn.functional.",
        "Tensor": "ms.Tensor.",
        "Functional": "ms.ops.",
    },
}
_ROOTS["mindtorch"] = _ROOTS["pytorch"]
_MOVES = frozenset("cuda npu".split())
_LONGEST_MESSAGE = 300


def repro_script(saved: Path) -> str:
    """Return the script of a saved API.

    Raises:
        UsageError: the file is no JSON of a saved API, or its record cannot be read.
    """
    data = load_error_data(saved)
    try:
        record = decode_record(data.payload.name, data.payload.forward, data.payload.backward)
    except PrecheckError as error:
        raise UsageError(f"{saved} holds a record that cannot be read: {error}") from None
    frame = FRAMES["mindspore" if data.framework == "mindspore" else "pytorch"]
    names = {path: f"x[{position}]" for position, path in enumerate(data.inputs)}
    spelled = _Words("ms" if data.framework == "mindspore" else "torch", names)
    files = [f'load("{name}")' for name in data.inputs.values()]
    message = " ".join(data.replay.message.split())[:_LONGEST_MESSAGE]
    note = spelled.note(data, record)
    script = frame.format(
        name=_plain(data.payload.name),
        message=_plain(message or "its JSON does not say"),
        folder=str(data.folder.absolute()),
        stem=data.stem,
        dtypes=repr(dict(data.dtypes)),
        note=f"\n# {note}" if note else "",
        call=spelled.call(data, record),
        inputs=", ".join(files),
        in_place=data.replay.in_place,
        differentiable=list(data.replay.differentiable),
        failing=list(data.failing),
        captured=data.tested == "dump",
        by_default=data.replay.standard == "msprobe",
        imports="import torch_npu\n" if record.name.prefix == "NPU" else "",
    )
    captured = data.tested == "dump"
    words = {
        "default" if data.replay.standard == "msprobe" else "other",
        "captured" if captured else "",
        "backward" if data.replay.differentiable and not captured else "",
    }
    return only_needed(script, words)


def _plain(text: str) -> str:
    """Return text that ends no comment and no string of the script."""
    return "".join(c if c.isprintable() and c not in '\\"' else " " for c in text)


class _Words:
    """How values of a record are written in a script; `names` are the tensors by argument path."""

    def __init__(self, module: str, names: dict[str, str]) -> None:
        self._module = module
        self._names = names

    def note(self, data: ErrorData, record: ApiRecord) -> str:
        """Return what a reader has to do by hand, "" where the script runs as it is."""
        if self._function(data, record) is None:
            return f"{record.name.type_name} has no plain spelling: write the call below."
        if any(isinstance(spec, UnknownSpec) for _, spec in record.input_leaves()):
            return "An argument is not described in the dump: write it below, for the word UNKNOWN."
        if data.framework == "mindtorch":
            return "Run it where MSAdapter's torch comes before the native one in PYTHONPATH."
        return ""

    def call(self, data: ErrorData, record: ApiRecord) -> str:
        """Return the call as an expression of x, the list of the tensors."""
        arguments = [
            *(self._value(spec, f"input_args.{i}") for i, spec in enumerate(record.args)),
            *self._keywords(record),
        ]
        function = self._function(data, record)
        if function is None:
            return f"UNKNOWN({', '.join(arguments)})"
        if record.name.prefix == "Tensor" and record.name.api in _MOVES:
            return f"{arguments[0]}.clone()"
        if record.name.prefix == "Tensor" and record.name.api in ("__getitem__", "__setitem__"):
            arguments[1] = self._index(record, arguments[1])
        return f"{function}({', '.join(arguments)})"

    def _keywords(self, record: ApiRecord) -> Iterator[str]:
        for key, spec in record.kwargs:
            value = self._value(spec, f"input_kwargs.{key}")
            yield f"{key}={value}" if key.isidentifier() else f"**{{{key!r}: {value}}}"

    def _function(self, data: ErrorData, record: ApiRecord) -> str | None:
        root = _ROOTS.get(data.framework, {}).get(record.name.prefix)
        parts = record.name.api.split(".")
        return (
            None
            if root is None or not all(map(str.isidentifier, parts))
            else f"{root}{record.name.api}"
        )

    def _index(self, record: ApiRecord, text: str) -> str:
        """Return an index as `x[0, 1]` has it; a dump writes it like `x[[0, 1]]`."""
        index, tensor = record.args[1], record.args[0]
        if not isinstance(index, SequenceSpec):
            return text
        out = record.outputs[0] if record.outputs else None
        numbers = all(isinstance(i, Constant) and type(i.value) is int for i in index.items)
        if numbers and isinstance(tensor, TensorSpec) and isinstance(out, TensorSpec):
            return f"tuple({text})" if len(out.shape) != len(tensor.shape) else f"list({text})"
        return f"tuple({text})"

    def _value(self, spec: ValueSpec, path: str) -> str:
        match spec:
            case TensorSpec():
                return self._names.get(path, "UNKNOWN")
            case Constant(value):
                return _constant(value)
            case Symbol(kind, value):
                return self._symbol(kind, value)
            case SequenceSpec(items):
                parts = [self._value(item, f"{path}.{i}") for i, item in enumerate(items)]
                if self._module == "ms" and all(isinstance(item, Constant) for item in items):
                    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
                return f"[{', '.join(parts)}]"
            case MappingSpec(items):
                pairs = (f"{key!r}: {self._value(item, f'{path}.{key}')}" for key, item in items)
                return f"{{{', '.join(pairs)}}}"
            case _:
                return "UNKNOWN"

    def _symbol(self, kind: str, value: str) -> str:
        if kind == "device":
            return "DEVICE"
        return f"{self._module}.{'bool_' if (self._module, value) == ('ms', 'bool') else value}"


def _constant(value: object) -> str:
    if value is Ellipsis:
        return "..."
    is_number = not isinstance(value, float) or math.isfinite(value)
    return repr(value) if is_number else f"float({str(value)!r})"
