"""Small PyTorch dumps for the tests that need calls of a certain kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np


def tensor(dtype: str, shape: list[int], low: Any, high: Any) -> dict[str, Any]:
    """Return the description of a tensor as msprobe writes it."""
    return {
        "type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": shape,
        "Max": high, "Min": low, "Mean": None, "Norm": None, "requires_grad": False,
    }  # fmt: skip


def saved(folder: Path, key: str, place: str, values: Any, **described: Any) -> dict[str, Any]:
    """Save a float32 array where the capture in a folder has it; return the tensor's description."""
    name = f"{key}.{place}.npy"
    np.save(folder / "dump_tensor_data" / name, values)
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape),
        "Max": float(values.max()), "Min": float(values.min()), "Mean": float(values.mean()),
        "Norm": float(np.linalg.norm(values)), **described, "data_name": name,
    }  # fmt: skip


def value(plain: Any) -> dict[str, Any]:
    """Return the description of a Python value."""
    return {"type": type(plain).__name__, "value": plain}


def forward(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return a forward record."""
    return {
        "input_args": list(args),
        "input_kwargs": kwargs,
        "output": [tensor("float32", [1], 0, 1)],
    }


def additions(count: int, first: int = 0) -> dict[str, Any]:
    """Return harmless calls."""
    record = forward(tensor("float32", [4, 4], -1.0, 1.0), value(1))
    return {f"Tensor.add.{number}.forward": record for number in range(first, first + count)}


def killer(number: int = 0) -> dict[str, Any]:
    """Return a call that kills its process with SIGSEGV."""
    return broken("modified_bessel_i0", number)


def slow(number: int = 0, size: int = 2200) -> dict[str, Any]:
    """Return a call that takes very much longer than its size suggests."""
    return {
        f"Torch.linalg.svd.{number}.forward": forward(tensor("float32", [size, size], -1.0, 1.0))
    }


def large(number: int = 0, size: int = 1500) -> dict[str, Any]:
    """Return a call whose bench takes much longer than it takes to hand its tensors over."""
    square = tensor("float32", [size, size], -1.0, 1.0)
    record = {**forward(square, square), "output": [square]}
    return {f"Torch.matmul.{number}.forward": record}


def broken(fault: str, number: int = 0, size: int = 4) -> dict[str, Any]:
    """Return a call of an operator that scripts/faulty has broken."""
    record = forward(tensor("float32", [size, size], 0.5, 1.0))
    return {f"Torch.special.{fault}.{number}.forward": record}


def many_times(capture: Path, copies: int) -> Path:
    """Have every call of a dump so many times, under new numbers; returns its path."""
    content = json.loads(capture.read_text())
    content["data"] = {
        f"{api}.{int(number) + 1000 * copy}.{direction}": record
        for copy in range(copies)
        for key, record in content["data"].items()
        for api, number, direction in [key.rsplit(".", 2)]
    }
    capture.write_text(json.dumps(content))
    return capture


def write_dump(path: Path, *parts: dict[str, Any]) -> Path:
    """Write a dump of these records and return its path."""
    data = {key: record for part in parts for key, record in part.items()}
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**header, "data": data}))
    return path
