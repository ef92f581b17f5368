"""How a saved call is written as a Python expression.

Comes in: a saved API and its record. Goes out: the text of its call, of `x`, the list of its tensors.
Called by `repro`.
"""

import math
import re
from collections.abc import Iterator

from ray_precheck.descriptors.descriptor import Script, find_framework
from ray_precheck.errors import UsageError
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
from ray_precheck.store.error_data import ErrorData

_MOVES = frozenset("cuda npu".split())
_DEVICE_TEXT = re.compile(r"(cpu|cuda|npu|gpu)(:\d+)?")


def script_of(data: ErrorData) -> Script:
    """Return how scripts of the framework of a saved call are written.

    Raises:
        UsageError: this framework has no writer of scripts.
    """
    script = find_framework(data.framework).script
    if script is None:
        raise UsageError(
            f"no script can be written for a call of {data.framework}, because the descriptor of this"
            " framework names no writer of scripts; check the saved call again with"
            " ray_precheck.rerun(JSON)"
        )
    return script


class CallText:
    """A saved call in the words of a script."""

    def __init__(self, data: ErrorData, record: ApiRecord) -> None:
        self._data = data
        self._record = record
        self._script = script_of(data)
        self._names = {path: f"x[{position}]" for position, path in enumerate(data.inputs)}

    def note(self) -> str:
        """Return the steps that a reader has to do by hand, "" if the script runs as it is."""
        if self._function() is None:
            return f"{self._record.name.type_name} has no plain spelling: write the call below."
        if any(isinstance(spec, UnknownSpec) for _, spec in self._record.input_leaves()):
            return "An argument is not described in the dump: write it below, for the word UNKNOWN."
        return self._script.note

    def call(self) -> str:
        """Return the call as an expression of x, the list of the tensors."""
        record = self._record
        given = [self._value(spec, f"input_args.{i}") for i, spec in enumerate(record.args)]
        if record.name.prefix == "Primitive":
            # It is made with its attributes, and called with the rest.
            made = f"{self._function() or 'UNKNOWN'}({', '.join(self._keywords())})"
            return f"{made}({', '.join(given)})"
        arguments = [*given, *self._keywords()]
        function = self._function()
        if function is None:
            return f"UNKNOWN({', '.join(arguments)})"
        if record.name.prefix == "Tensor" and record.name.api in _MOVES:
            return f"{arguments[0]}.clone()"
        is_subscript = record.name.type_name in ("Tensor.__getitem__", "Tensor.__setitem__")
        if is_subscript and isinstance(record.args[1], SequenceSpec):
            kind = "tuple" if record.is_indexed_by_tuple else "list"
            arguments[1] = f"{kind}({arguments[1]})"
        return f"{function}({', '.join(arguments)})"

    def _keywords(self) -> Iterator[str]:
        for key, spec in self._record.kwargs:
            value = self._value(spec, f"input_kwargs.{key}")
            yield f"{key}={value}" if key.isidentifier() else f"**{{{key!r}: {value}}}"

    def _function(self) -> str | None:
        name = self._record.name
        root = self._script.roots.get(name.prefix)
        parts = name.api.split(".")
        return (
            None if root is None or not all(map(str.isidentifier, parts)) else f"{root}{name.api}"
        )

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
                if self._script.takes_tuples and all(isinstance(item, Constant) for item in items):
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
        return f"{self._script.module}.{self._script.symbols.get(value, value)}"


def _constant(value: object) -> str:
    if value is Ellipsis:
        return "..."
    if isinstance(value, str) and _DEVICE_TEXT.fullmatch(value):
        return "DEVICE"
    is_number = not isinstance(value, float) or math.isfinite(value)
    return repr(value) if is_number else f"float({str(value)!r})"
