"""Two small captures with planted differences, of which msprobe has made tables.

`tests/data/msprobe_compare` holds what mindstudio-probe 26.2 wrote for them: `python planted_captures.py DIR`
writes the captures, and `msprobe.mindspore.compare.ms_compare.ms_compare` on `DIR/{real,statistics,md5}`
with `npu_path` target/dump.json and `bench_path` golden/dump.json makes the tables.
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

MODES = ("real", "statistics", "md5")
RAMP = (np.arange(24, dtype=np.float32).reshape(4, 6) - 7) / 8


class Planted:
    """The records of one side of a mode, and their arrays by name."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.data: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}

    def add(self, key: str, inputs: list[Any], output: Any, **keywords: Any) -> None:
        """Add a record; arrays become tensors, all else stays."""
        self.data[key] = {
            "input_args": [self._value(x, f"{key}.input.{i}") for i, x in enumerate(inputs)],
            "input_kwargs": {k: self._value(v, f"{key}.input.{k}") for k, v in keywords.items()},
            "output": [self._value(output, f"{key}.output.0")],
        }

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, tuple):
            return self._tensor(value[0], name) | {"requires_grad": value[1]}
        return self._tensor(value, name) if isinstance(value, np.ndarray) else value

    def _tensor(self, array: Any, name: str) -> dict[str, Any]:
        dtype = str(array.dtype).capitalize()
        found = {"type": "mindspore.Tensor", "dtype": dtype, "shape": list(array.shape)}
        if self.mode == "md5":
            return found | {"md5": f"{zlib.crc32(array.tobytes()):08x}"}
        found |= dict(zip(("Max", "Min", "Mean", "Norm"), _statistics(array), strict=True))
        if self.mode == "real":
            self.arrays[f"{name}.npy"] = array
            found["data_name"] = f"{name}.npy"
        return found


def _statistics(array: Any) -> list[Any]:
    if not array.size:
        return [None] * 4
    if array.dtype == bool:
        return [bool(array.max()), bool(array.min()), None, None]
    wide = array.astype(np.float64)
    norm = np.sqrt((wide * wide).sum())
    return [float(np.float32(x)) for x in (wide.max(), wide.min(), wide.mean(), norm)]


def _with(value: float) -> Any:
    found = RAMP.copy()
    found[1, 2] = value
    return found


def constant(value: Any, kind: str = "") -> dict[str, Any]:
    """Return the element of a value that is no tensor."""
    return {"type": kind or type(value).__name__, "value": value}


def planted(mode: str, *, target: bool) -> Planted:
    """Return one side."""
    side = Planted(mode)
    zeros, half = np.zeros(3, np.float32), RAMP.astype(np.float16)
    one = np.array([0, 1, 0], np.float32)
    numbers, flags = np.arange(6), np.array([True, False, True])

    def choose(ours: Any, theirs: Any) -> Any:
        return ours if target else theirs

    side.add("Mint.equal.0.forward", [RAMP], RAMP * 2, dim=constant(1), keepdim=constant(True))
    side.add("Mint.scaled.0.forward", [RAMP], choose(RAMP * np.float32(1.01), RAMP))
    side.add("Mint.negated.0.forward", [RAMP], choose(-RAMP, RAMP))
    side.add("Mint.ulp.0.forward", [RAMP], choose(np.nextafter(RAMP, np.float32(9)), RAMP))
    side.add("Mint.nan_one.0.forward", [RAMP], choose(_with(np.nan), RAMP))
    side.add("Mint.nan_gold.0.forward", [RAMP], choose(RAMP, _with(np.nan)))
    side.add("Mint.nan_both.0.forward", [_with(np.nan)], _with(np.nan))
    side.add("Mint.inf_signs.0.forward", [RAMP], choose(_with(np.inf), _with(-np.inf)))
    side.add("Mint.inf_one.0.forward", [RAMP], choose(_with(np.inf), RAMP))
    side.add("Mint.order.0.forward", [RAMP], choose(RAMP[::-1].copy(), RAMP))
    side.add("Mint.dtype.0.forward", [choose(half, RAMP)], choose(half, RAMP))
    side.add("Mint.shape.0.forward", [RAMP], choose(RAMP.T.copy(), RAMP))
    for name, shape in (("scalar", ()), ("single", (1,))):
        outputs = [np.full(shape, value, np.float32) for value in (2.75, 2.5)]
        side.add(f"Mint.{name}.0.forward", [outputs[1]], choose(*outputs))
    side.add(
        "Mint.empty_out.0.forward", [np.zeros((0, 3), np.float32)], np.zeros((0, 3), np.float32)
    )
    side.add("Mint.ints.0.forward", [numbers], choose(numbers + (numbers == 3), numbers))
    side.add("Mint.bools.0.forward", [flags], choose(flags | True, flags))
    side.add("Mint.zeros.0.forward", [zeros], choose(zeros, one))
    side.add("Mint.zero_gold.0.forward", [zeros], choose(one * np.float32(1e-3), zeros))
    values = [
        constant(choose(3, 2)), constant(0.1), constant(choose("npu:0", "cpu")), None,
        constant("Float32", "mindspore.dtype"),
    ]  # fmt: skip
    side.add("Mint.scalars.0.forward", values, RAMP, flag=constant(target))
    side.add("Mint.grad.0.forward", [(RAMP, target)], (RAMP, True))
    side.add("Functional.to.0.forward", [RAMP], choose(half, RAMP))
    side.add("Mint.empty.1.forward", [constant(3)], choose(_with(np.nan), RAMP))
    side.add("Mint.shrink.0.forward", [choose(RAMP * np.float32(1.5), RAMP)], RAMP)
    side.add("Mint.more.0.forward", [RAMP, *([RAMP] if target else [])], RAMP)
    side.add(f"Mint.only_{choose('target', 'golden')}.0.forward", [RAMP], RAMP)
    return side


def write_side(folder: Path, mode: str, *, target: bool) -> Path:
    """Write one side of a mode, and return its dump.json."""
    side, tensors = planted(mode, target=target), folder / "dump_tensor_data"
    tensors.mkdir(parents=True, exist_ok=True)
    for name, array in side.arrays.items():
        np.save(tensors / name, np.asarray(array))
    dump = {
        "task": "tensor" if mode == "real" else "statistics", "level": "L1", "framework": "mindspore",
        "dump_data_dir": str(tensors) if mode == "real" else None, "data": side.data,
    }  # fmt: skip
    path = folder / "dump.json"
    path.write_text(json.dumps(dump), encoding="utf-8")
    return path


if __name__ == "__main__":
    for each in MODES:
        for name in ("target", "golden"):
            write_side(Path(sys.argv[1]) / each / name, each, target=name == "target")
