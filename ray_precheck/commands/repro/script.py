"""A Python script that shows the failure of one saved API, without ray_precheck.

Comes in: the JSON that `-save_error_data` has left. Goes out: the text of a script of one screen, which
needs the framework and NumPy, and the files beside the JSON. Called by the command `repro`.

The script runs the call on the saved inputs and compares with the saved results of the bench. Other
standards than the default one need more than the script has: an output that failed by one of them fails
in the script if its error is at least half as large as in the run. Captured results are judged from the
saved pair. If no bench was saved (the call raised, or draws random numbers), the script prints what it
can judge.

Also here: how a saved call is written as a Python expression.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ray_precheck.bench.checkable import changed_tensors, is_random, seed_of
from ray_precheck.commands.repro.text import Aim, FailingOutput, Needs, Placed
from ray_precheck.descriptors.descriptor import Script, find_framework, load_part
from ray_precheck.dump.decode import decode_record
from ray_precheck.errors import NotCheckable, PrecheckError, UsageError
from ray_precheck.inputs.layouts import placed_alone, placed_together, transposed
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, is_differentiable
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import (
    Constant,
    HostTensor,
    MappingSpec,
    SequenceSpec,
    Sparse,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)
from ray_precheck.store.error_data import ErrorData, load_error_data

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
        self._names = {path: f"x[{position}]" for position, path in enumerate(data.source.inputs)}

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


# msprobe's limit of MaxAbsErr.
_LIMIT = 1e-4
_LONGEST_MESSAGE = 200


def repro_script(saved: Path, *, is_beside: bool = False) -> str:
    """Return the script of a saved API; `is_beside`: it looks for the files where it stands itself.

    Raises:
        UsageError: the file is no JSON of a saved API, its record or a file beside it cannot be read.
    """
    data = load_error_data(saved)
    try:
        payload = data.payload
        record = decode_record(payload.name, payload.forward, payload.backward, data.framework)
        needs = replace(_needs(data, record), is_beside=is_beside)
    except NotCheckable as error:
        raise UsageError(f"{saved}: {error}") from None
    except PrecheckError as error:
        raise UsageError(f"{saved} holds a record that cannot be read: {error}") from None
    return load_part(script_of(data).writer)(needs)  # type: ignore[no-any-return]


def _needs(data: ErrorData, record: ApiRecord) -> Needs:
    """Return the contents of the script of a call.

    Raises:
        NotCheckable: a saved file cannot be read.
    """
    changed = {each.name: each.position for each in changed_tensors(record)}
    rows = tuple(_row(data, name, changed) for name in data.failing if _side(data, name, "bench"))
    aim = Aim.COMPARE
    if not rows and is_random(record):
        failing = (name for name in data.failing if _side(data, name, "device"))
        rows = tuple(_row(data, name, changed) for name in failing)
        aim = Aim.DRAW
    if not rows:
        aim = Aim.RAISE if "the device raised" in data.replay.message else Aim.LOOK
    captured = data.tested == "dump" and bool(rows)
    leaves, rows = _leaves(data, aim, rows, captured=captured)
    text = CallText(data, record)
    incoming = _cotangents(data) if _needs_gradients(data, aim, rows, captured) else {}
    message = textwrap.shorten(data.replay.message, _LONGEST_MESSAGE, placeholder=" ...")
    return Needs(
        name=_plain(data.payload.name),
        message=_plain(message or "its JSON does not say."),
        files=str(data.source.folder.absolute() / data.source.stem),
        device=data.replay.device,
        float32=data.replay.float32.of_call(record.name.type_name),
        aim=aim,
        rule=data.replay.standard,
        captured=captured,
        seed=seed_of(data.seed, str(record.name)) if aim is Aim.DRAW else None,
        call=text.call(),
        note=text.note(),
        needs_npu=record.name.prefix == "NPU",
        rows=rows,
        inputs=tuple(
            data.source.dtypes.get(name, "float32") for name in data.source.inputs.values()
        ),
        leaves=leaves,
        cotangents=incoming,
        layouts=_layouts(data, record),
        incoming_layouts=_incoming_layouts(data, record, list(incoming)),
        built=tuple(
            line
            for position, (_, spec) in enumerate(record.input_tensors())
            for line in _built(position, spec)
        ),
        listed=_listed(record),
        in_place=data.replay.in_place,
        autocast=record.autocast,
        nested=any(not isinstance(spec, TensorSpec) for spec in record.outputs),
        outputs=len(record.outputs),
        float_outputs=_float_outputs(record.outputs),
        is_complex=any(DTYPES[dtype].kind == "complex" for dtype in data.source.dtypes.values()),
    )


def _listed(record: ApiRecord) -> int:
    """Return how many tensors the list has that is the first argument, 0 where it is none."""
    first = record.args[0] if record.args else None
    if not isinstance(first, SequenceSpec):
        return 0
    return sum(path.startswith("input_args.0.") for path, _ in record.input_tensors())


def _built(position: int, spec: TensorSpec) -> Iterator[str]:
    """Yield the lines of torch that make an input of the values that were saved."""
    x, storage = f"x[{position}]", spec.storage
    if isinstance(storage, Sparse):
        checked = "check_invariants=True"
        file = f'load("forward.input.{position}.indices'
        if storage.layout == "coo":
            whole = ".coalesce()" if storage.coalesced else ""
            made = f'torch.sparse_coo_tensor({file}0").to(DEVICE), {x}, {spec.shape}, {checked}){whole}'
        else:
            places = ", ".join(f'{file}{number}").to(DEVICE)' for number in range(2))
            layout = f"layout=torch.sparse_{storage.layout}, {checked}"
            made = f"torch.sparse_compressed_tensor({places}, {x}, {spec.shape}, {layout})"
        yield f"{x} = {made}"
    elif storage is not None:
        yield f"# {x} was a {type(storage).__name__.lower()} tensor; here it has the numbers that it stored."
    elif spec.lazy == "conj":
        yield f"{x} = {x}.conj().resolve_conj().conj()  # A lazy conjugate, as in the run."
    elif spec.lazy == "neg":
        yield f"# {x} was a lazy negative; here its values lie in memory as they are."


def _layouts(data: ErrorData, record: ApiRecord) -> tuple[Placed, ...]:
    """Return the layouts of the inputs with which the call failed."""
    specs = list(record.input_tensors())
    if not data.replay.is_transposed and not any(
        spec.stride is not None or spec.offset or spec.shares for _, spec in specs
    ):
        return ()
    tensors = [data.source.file(name) for name in data.source.inputs.values()]
    if len(tensors) == len(specs):
        tensors, _ = placed_together(tensors, specs, may_change=False)
    return _groups([transposed(t) if data.replay.is_transposed else t for t in tensors])


def _incoming_layouts(data: ErrorData, record: ApiRecord, outputs: list[int]) -> tuple[Placed, ...]:
    """Return the layouts of the incoming gradients of some outputs."""
    specs = record.grads_in or ()
    tensors = []
    for output in outputs:
        tensor = data.source.file(f"{data.source.stem}.backward.input.{output}.npy")
        spec = specs[output] if output < len(specs) else None
        if isinstance(spec, TensorSpec):
            tensor = placed_alone(tensor, spec, may_change=False)
        tensors.append(transposed(tensor) if data.replay.is_transposed else tensor)
    return _groups(tensors)


def _groups(tensors: list[HostTensor]) -> tuple[Placed, ...]:
    found: dict[int, Placed] = {}
    for position, tensor in enumerate(tensors):
        layout = tensor.layout
        if layout is not None:
            before = found.get(id(layout.buffer))
            members = () if before is None else before.members
            member = (position, layout.stride, layout.offset)
            found[id(layout.buffer)] = Placed(len(layout.buffer), (*members, member))
    return tuple(found.values())


def _row(data: ErrorData, name: str, changed: Mapping[str, int]) -> FailingOutput:
    """Return a failing output with the limit of its error; `changed` are the inputs that the call changes.

    Raises:
        NotCheckable: a saved file cannot be read.
    """
    direction, kind, label = name.split(".")
    device, bench = (_side(data, name, side) for side in ("device", "bench"))
    is_changed = kind == "changed"
    if is_changed and label not in changed:
        raise NotCheckable(f"the call has no tensor {label} that it changes")
    row = FailingOutput(
        direction,
        changed[label] if is_changed else int(label),
        _LIMIT,
        data.source.dtypes.get(device, ""),
        changed=label if is_changed else "",
    )
    if not bench or not device or data.replay.standard == "msprobe":
        return row
    tested, wanted = data.source.file(device), data.source.file(bench)
    if tested.shape != wanted.shape:
        return row
    with np.errstate(all="ignore"):
        expected = round_to_dtype(wanted.data, tested.dtype)
        wide = np.complex128 if np.iscomplexobj(expected) else np.float64
        error = np.abs(tested.data.astype(wide) - expected.astype(wide))
    largest = float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0))
    return replace(row, limit=0.5 * largest or _LIMIT)


def _side(data: ErrorData, name: str, side: str) -> str:
    """Return the file of a failing output on one side, "" if there is none."""
    place, _, number = name.rpartition(".")
    file = f"{data.source.stem}.{place}.{side}.{number}.npy"
    return file if data.source.dtypes.get(file) in DTYPES else ""


def _needs_gradients(
    data: ErrorData, aim: Aim, rows: tuple[FailingOutput, ...], captured: bool
) -> bool:
    if captured or not data.replay.differentiable:
        return False
    raised = aim is Aim.RAISE and "backward: the device raised" in data.replay.message
    return raised or any(row.direction == "backward" for row in rows)


def _leaves(
    data: ErrorData, aim: Aim, rows: tuple[FailingOutput, ...], *, captured: bool
) -> tuple[tuple[int, ...], tuple[FailingOutput, ...]]:
    """Return the inputs that require a gradient, and the rows with the place of their gradient.

    Where gradients are compared those of the failing rows suffice: torch may have none by the others.
    """
    differentiable = data.replay.differentiable
    if captured:
        return (), rows
    asked = [row.number for row in rows if row.direction == "backward"]
    asked = [number for number in asked if number < len(differentiable)]
    if not asked:
        return differentiable, tuple(row for row in rows if row.direction == "forward")
    placed = tuple(
        replace(row, place=asked.index(row.number)) if row.direction == "backward" else row
        for row in rows
        if row.direction == "forward" or row.number in asked
    )
    return tuple(differentiable[number] for number in asked), placed


def _cotangents(data: ErrorData) -> dict[int, str]:
    """Return the dtypes of the saved incoming gradients by the position of their output."""
    prefix = f"{data.source.stem}.backward.input."
    return {
        int(name.removeprefix(prefix).removesuffix(".npy")): dtype
        for name, dtype in data.source.dtypes.items()
        if name.startswith(prefix)
    }


def _float_outputs(outputs: tuple[ValueSpec, ...]) -> int | None:
    """Return how many outputs are differentiable; None where the dump does not say it."""
    if not outputs or any(isinstance(spec, SequenceSpec) for spec in outputs):
        return None
    tensors = [spec for spec in outputs if isinstance(spec, TensorSpec)]
    return sum(is_differentiable(spec.dtype) for spec in tensors)


def _plain(text: str) -> str:
    """Return text that ends no comment and no string of the script."""
    return "".join(c if c.isprintable() and c not in '\\"' else " " for c in text)
