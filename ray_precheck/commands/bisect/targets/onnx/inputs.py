"""The inputs of an ONNX model: those that the user gives, or random ones.

Comes in: what the model says of its inputs. Goes out: arrays that its sessions take. Called by `target`.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ray_precheck.errors import UsageError
from ray_precheck.foreign import caught, first_line, open_file

Array = npt.NDArray[Any]

_DTYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
# Of dimensions without a size: a batch of 1, and small for the others.
_FRONT, _OTHER = 1, 16


def dtype_of(described: Mapping[str, Any]) -> str:
    """Return NumPy's name for the dtype of an input, "" where it has none."""
    inner = described["type"].removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(inner, "")


def given_inputs(path: Path, described: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return the inputs in a file.

    Raises:
        UsageError: it cannot be read, or names, shapes or dtypes are not those of the model.
    """

    def read() -> dict[str, Array]:
        with open_file(path) as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    found, error = caught(read)
    if found is None:
        assert error is not None
        raise UsageError(f"--input {path}: cannot read it as .npz: {first_line(error)}")
    wanted = {each["name"]: each for each in described}
    for name in wanted.keys() - found.keys():
        raise UsageError(
            f"--input {path} lacks the input {name}; it has {', '.join(found) or 'none'}"
        )
    for name in found.keys() - wanted.keys():
        raise UsageError(
            f"--input {path}: the model has no input {name}; it has {', '.join(wanted)}"
        )
    for name, array in found.items():
        _require_alike(f"--input {path}: {name}", array, wanted[name])
    return found


def _require_alike(what: str, array: Array, described: Mapping[str, Any]) -> None:
    dtype, shape = dtype_of(described), described["shape"]
    if dtype and str(array.dtype) != dtype:
        raise UsageError(f"{what} is {array.dtype}; the model takes {dtype}")
    fits = len(shape) == array.ndim and all(
        not isinstance(wanted, int) or wanted == size
        for wanted, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"{what} has the shape {list(array.shape)}; the model takes {_shown(shape)}"
        )


def random_inputs(
    described: Sequence[Mapping[str, Any]], sizes: Sequence[str]
) -> tuple[dict[str, Array], str]:
    """Return inputs, the same in every run, and a sentence on them.

    Floats are of the normal distribution, whole numbers and bool are 0 or 1: they may be indices.

    Raises:
        UsageError: an input is no tensor of numbers, or `sizes` names a dimension that no input has.
    """
    asked = {name: int(size) for name, _, size in (word.partition("=") for word in sizes)}
    named = {size for each in described for size in each["shape"] if isinstance(size, str)}
    for name in asked.keys() - named:
        there = f"there are {', '.join(sorted(named))}" if named else "all have sizes"
        raise UsageError(
            f"--shape {name}={asked[name]}: no input has a dimension of that name; {there}"
        )
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    chosen: dict[str, int] = {}
    for each in described:
        dtype = dtype_of(each)
        if not dtype:
            raise UsageError(
                f"the input {each['name']} is a {each['type']}; give the inputs with --input FILE.npz"
            )
        shape = []
        for place, size in enumerate(each["shape"]):
            if isinstance(size, int):
                shape.append(size)
                continue
            default = _OTHER if place else _FRONT
            key = str(size or f"{each['name']}[{place}]")
            shape.append(chosen.setdefault(key, asked.get(key, default)))
        if np.dtype(dtype).kind == "f":
            found[each["name"]] = random.standard_normal(shape).astype(dtype)
        else:
            found[each["name"]] = random.integers(0, 2, shape).astype(dtype)
    said = "the inputs are random (--input gives others)"
    if chosen:
        named_sizes = ", ".join(f"{name}={size}" for name, size in chosen.items())
        said += f", with {named_sizes} (--shape gives others)"
    return found, said


def save_inputs(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write inputs as an .npz file; `numpy.savez` takes no array that is called "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)  # type: ignore[no-untyped-call]


def _shown(shape: Sequence[Any]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
