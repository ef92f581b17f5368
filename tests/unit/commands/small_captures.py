"""Small captures that tests write by hand: calls with tensors in files, or with statistics alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Values = Any


def element(values: Values, **others: Any) -> dict[str, Any]:
    """A tensor of float32 as it stands in a dump, with its statistics."""
    array = np.asarray(values, np.float32)
    flat = array.astype(np.float64).reshape(-1)
    with np.errstate(invalid="ignore"):
        statistics = {
            "Max": float(flat.max()),
            "Min": float(flat.min()),
            "Mean": float(flat.mean()),
            "Norm": float(np.linalg.norm(flat)),
        }
    shape = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(array.shape)}
    return {**shape, **statistics, **others}


def write_capture(
    folder: Path,
    calls: Sequence[tuple[str, Sequence[Values], Sequence[Values]]],
    *,
    files: bool = True,
    framework: str = "mindspore",
    stacks: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write a capture of calls: the key of each, what it got and what it gave; returns its dump.json."""
    tensors = folder / "dump_tensor_data"
    tensors.mkdir(parents=True)
    data = {}
    for key, inputs, outputs in calls:
        record: dict[str, list[Any]] = {}
        given, made = ("input", "output") if key.endswith("backward") else ("input_args", "output")
        for part, name, values in ((given, "input", inputs), (made, "output", outputs)):
            record[part] = []
            for number, each in enumerate(values):
                file = f"{key}.{name}.{number}.npy"
                if files:
                    np.save(tensors / file, np.asarray(each, np.float32))
                record[part].append(element(each, **({"data_name": file} if files else {})))
        data[key] = record
    task = "tensor" if files else "statistics"
    header = {"task": task, "level": "L1", "framework": framework, "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}), encoding="utf-8")
    if stacks is not None:
        (folder / "stack.json").write_text(json.dumps(stacks), encoding="utf-8")
    return folder / "dump.json"
