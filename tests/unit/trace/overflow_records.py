"""Records of a dump with the values that a test of overflows needs, and the dumps of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAN, INF = float("nan"), float("inf")
FINITE = (2.0, -1.0)


def tensor(
    top: float | None = 2.0,
    bottom: float | None = -1.0,
    dtype: str = "torch.float32",
    shape: tuple[int, ...] = (4, 8),
    **more: Any,
) -> dict[str, Any]:
    """Return a tensor with these largest and smallest values; Mean and Norm as a capture has them."""
    ends = [each for each in (top, bottom) if each is not None]
    mean = sum(ends) / 2 if ends else None
    norm = max(map(abs, ends)) if ends and NAN not in ends else mean
    stats = {"Max": top, "Min": bottom, "Mean": mean, "Norm": norm}
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape), **stats, **more}


def number(value: float) -> dict[str, Any]:
    return {"type": "float", "value": value}


def forward(inputs: list[Any], outputs: list[Any], **more: Any) -> dict[str, Any]:
    return {"input_args": inputs, "input_kwargs": {}, "output": outputs, **more}


def backward(inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    return {"input": inputs, "output": outputs}


def write_dump(
    folder: Path, records: Mapping[str, Any], construct: Mapping[str, Any] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": records}))
    if construct is not None:
        (folder / "construct.json").write_text(json.dumps(construct))
    stack = ["File /home/me/train.py, line 7, in forward, \n y = f(x)"]
    (folder / "stack.json").write_text(json.dumps({"0": [list(records), stack]}))
    return folder / "dump.json"
