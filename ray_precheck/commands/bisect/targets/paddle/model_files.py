"""The files of a Paddle model, its inputs, and a run of it that was saved elsewhere.

Comes in: paths that a user gave, and what Paddle says of the model. Goes out: files that were looked at, each
error one sentence. Called by the target before anything is run: with a missing file of parameters Paddle runs
on what stands in memory, and exits with 0.

A file of parameters is a sequence of records: uint32 0, uint64 count of levels of LoD (each: uint64 length,
that many bytes), uint32 0, int32 length of a description (protobuf: field 1 the dtype, field 2 the sizes),
and the numbers (Paddle's `DenseTensor` as `save_combine` writes it).
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught, first_line, from_json, open_file, read_file

NEW, OLD = ".json", ".pdmodel"
# Bytes of an element by the number of its dtype (`VarType.Type` of Paddle's framework.proto).
_SIZES = {0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 19: 8, 20: 1, 21: 1, 22: 2, 23: 8, 24: 16}
_SIZES |= {32: 1, 33: 1}
# Unknown sizes of an input that is made up: the batch, and each other axis.
_BATCH, _AXIS = 1, 16
# More than that in a description or a level of LoD is no file of Paddle's.
_LONGEST_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class PaddleFiles:
    """The two files of a model; `is_new`: of the format of PIR."""

    model: Path
    params: Path

    @property
    def is_new(self) -> bool:
        """Whether the model is of the format of PIR."""
        return self.model.suffix == NEW


def paddle_files(model: Path, params: Path | None) -> PaddleFiles:
    """Return the files of a model, looked at.

    Raises:
        UsageError: one is missing, of no known format, or cut.
    """
    if model.suffix not in (NEW, OLD):
        raise UsageError(f"{model} is no model: expected a .json or a .pdmodel of Paddle")
    content, error = caught(lambda: read_file(model))
    if content is None:
        raise UsageError(f"{model}: cannot read the model: {_why(error)}")
    if model.suffix == NEW:
        found, error = caught(lambda: from_json(content))
        if not isinstance(found, dict) or "program" not in found:
            said = f": {first_line(error)}" if error else ""
            raise UsageError(f"{model} is no program of Paddle in JSON{said}; save the model again")
    params = params or model.with_suffix(".pdiparams")
    return PaddleFiles(model.absolute(), params.absolute())


def whole_params(files: PaddleFiles) -> list[tuple[int, ...]] | None:
    """Return the shapes of the parameters, None where there is no such file.

    Raises:
        UsageError: the file is cut, or none of Paddle's.
    """
    if not files.params.exists():
        return None
    found, error = caught(lambda: param_shapes(files.params))
    if found is None:
        raise UsageError(f"{files.params}: {_why(error)}; save the model again")
    return found


def require_params(
    files: PaddleFiles,
    shapes: Sequence[tuple[int, ...]] | None,
    parameters: Sequence[Mapping[str, Any]],
) -> None:
    """Require that parameters of these shapes are those of the model.

    Raises:
        UsageError: they are missing, or of another model.
    """
    wanted = sorted(tuple(each["shape"]) for each in parameters)
    if sorted(shapes or ()) != wanted:
        raise UsageError(
            f"{files.params} holds {len(shapes or ())} tensors that are not those of {files.model.name},"
            f" which has {len(wanted)}; give the file that was saved with it by --params"
        )


def param_shapes(path: Path) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a file of parameters.

    Raises:
        ValueError: it is none, or it is cut.
        OSError: it cannot be read.
    """
    shapes = []
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        while file.tell() < size:
            begin = file.tell()
            shape, count = _record(file)
            if file.tell() + count > size:
                missing = file.tell() + count - size
                raise ValueError(f"the parameters are cut: {missing} bytes are missing at the end")
            if file.tell() == begin:
                break
            file.seek(count, 1)
            shapes.append(shape)
    return shapes


def _record(file: BinaryIO) -> tuple[tuple[int, ...], int]:
    """Return the shape of the next tensor and its bytes, in front of which the file stands then."""
    version, levels = struct.unpack("<IQ", _exactly(file, 12))
    for _ in range(min(levels, _LONGEST_PART)):
        (length,) = struct.unpack("<Q", _exactly(file, 8))
        _exactly(file, length)
    inner, length = struct.unpack("<Ii", _exactly(file, 8))
    if version or inner:
        raise ValueError("it is no file of parameters of Paddle")
    dtype, shape = _description(_exactly(file, length))
    if dtype not in _SIZES:
        raise ValueError(f"it holds a tensor of the unknown dtype {dtype}")
    return shape, _SIZES[dtype] * prod(shape)


def _exactly(file: BinaryIO, count: int) -> bytes:
    if not 0 <= count <= _LONGEST_PART:
        raise ValueError("it is no file of parameters of Paddle")
    found = file.read(count)
    if len(found) < count:
        raise ValueError("the parameters are cut: the last tensor is not whole")
    return found


def _description(text: bytes) -> tuple[int, tuple[int, ...]]:
    dtype, sizes, at = -1, [], 0
    while at < len(text):
        key, at = _varint(text, at)
        value, at = _varint(text, at)
        if key == 0x08:
            dtype = value
        elif key == 0x10:
            sizes.append(value)
        elif key == 0x12:
            end = at + value
            while at < end:
                value, at = _varint(text, at)
                sizes.append(value)
    return dtype, tuple(sizes)


def _varint(text: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(text):
        byte = text[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("it is no file of parameters of Paddle")


def input_arrays(path: Path, specs: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of an .npz file, as the model has them.

    Raises:
        UsageError: it cannot be read, or a name, a shape or a dtype is another one.
    """
    arrays, error = caught(lambda: dict(np.load(path, allow_pickle=False)))
    if arrays is None:
        raise UsageError(f"--input {path}: cannot read it as .npz: {_why(error)}")
    names = [spec["name"] for spec in specs]
    if sorted(arrays) != sorted(names):
        there, wanted = ", ".join(arrays) or "none", ", ".join(names) or "none"
        raise UsageError(f"--input {path} has the arrays {there}; the model has {wanted}")
    for spec in specs:
        name, array, shape = spec["name"], arrays[spec["name"]], spec["shape"]
        sizes = zip(array.shape, shape, strict=False)
        if array.ndim != len(shape) or any(want not in (-1, size) for size, want in sizes):
            raise UsageError(
                f"--input {path}: {name} has the shape {list(array.shape)}; the model has {shape},"
                " where -1 is any size"
            )
        if str(array.dtype) != spec["dtype"]:
            raise UsageError(
                f"--input {path}: {name} is {array.dtype}; the model has {spec['dtype']}"
            )
    return arrays


def made_inputs(specs: Sequence[Mapping[str, Any]], seed: int) -> dict[str, npt.NDArray[Any]]:
    """Return made-up inputs: standard normal numbers, 0 and 1 for whole ones; an unknown size is 1 for the
    first axis and 16 for others."""
    random = np.random.default_rng(seed)
    found: dict[str, npt.NDArray[Any]] = {}
    for spec in specs:
        sizes = enumerate(spec["shape"])
        shape = [(_AXIS if axis else _BATCH) if size < 0 else size for axis, size in sizes]
        if spec["dtype"].startswith("float"):
            found[spec["name"]] = random.standard_normal(shape).astype(spec["dtype"])
        else:
            found[spec["name"]] = random.integers(0, 2, shape).astype(spec["dtype"])
    return found


# What may differ between two runs that are compared: it makes the difference that is looked for.
_MAY_DIFFER = ("Paddle", "processor")
_RUN, OUTPUTS, INPUTS, OPERATORS = "run.json", "outputs.npz", "inputs.npz", "operators.npz"


def run_facts(
    files: PaddleFiles, described: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]]
) -> dict[str, str]:
    """Return what tells a run from others, in the order in which it is compared."""
    return {
        "Paddle": f"{described['versions']['paddle']} ({described['versions']['commit']})",
        "processor": str(described["processor"]),
        "model": _hash_of(files.model),
        "parameters": _hash_of(files.params) if files.params.exists() else "none",
        **{f"input {name}": _array_hash(array) for name, array in sorted(inputs.items())},
    }


def save_run(
    folder: Path,
    facts: Mapping[str, str],
    settings: Sequence[str],
    rows: Sequence[Mapping[str, str]],
) -> None:
    """Write what a run was, beside its outputs, inputs and operators' values that stand there already."""
    saved = {"facts": dict(facts), "settings": list(settings), "operators": list(rows)}
    (folder / _RUN).write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that --save-run wrote: what it was, and what its operators are called."""

    folder: Path
    facts: Mapping[str, str]
    operators: tuple[Mapping[str, str], ...]

    def differs(self, facts: Mapping[str, str]) -> str:
        """Return the first item that is not the same in this run, as a sentence; "" where all are.

        Raises:
            UsageError: the model, the parameters or an input are others, so that nothing can be compared.
        """
        first = ""
        for name in dict.fromkeys([*facts, *self.facts]):
            here, there = facts.get(name, "none"), self.facts.get(name, "none")
            if here != there and name not in _MAY_DIFFER:
                raise UsageError(
                    f"--golden {self.folder}: {name} is not the same there ({there}) as here ({here}); make"
                    " both runs of the same files"
                )
            if here != there and not first:
                first = f"{name}, {there} there, {here} here"
        return f"the first thing that differs from the golden run: {first}" if first else ""


def saved_run(folder: Path) -> SavedRun:
    """Return a run that --save-run wrote.

    Raises:
        UsageError: it is none.
    """
    found, error = caught(lambda: from_json(read_file(folder / _RUN)))
    if not isinstance(found, dict) or not isinstance(found.get("facts"), dict):
        raise UsageError(
            f"--golden {folder}: no run.json of --save-run is there: {_why(error)}; give that folder, or an"
            " .npz file"
        )
    return SavedRun(folder, found["facts"], tuple(found.get("operators", ())))


def _hash_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _array_hash(array: npt.NDArray[Any]) -> str:
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype}{list(array.shape)} {content}"


def _why(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error) if error is not None else "it is something else"
