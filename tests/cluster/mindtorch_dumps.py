"""Dumps of torch, written as MSAdapter's: MindSpore's tensors and dtypes, files of NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np

_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")


def as_mindtorch(dump: Path, folder: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a capture of torch as one of MSAdapter, with further records; returns its dump.json."""
    content = json.loads(dump.read_text())
    folder.mkdir()
    found = {**content["data"], **(more or {})}
    data = {key: _converted(record) for key, record in found.items()}
    header = {**content, "framework": "mindtorch", "dump_data_dir": None}
    path = folder / "dump.json"
    path.write_text(json.dumps({**header, "data": data}))
    if content["task"] == "tensor":
        _convert_files(dump.parent / "dump_tensor_data", folder / "dump_tensor_data")
    return path


def _converted(value: Any) -> Any:
    if isinstance(value, list):
        return [_converted(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") in _TENSORS:
        return _tensor(value)
    if value.get("type") == "torch.dtype":
        return {"type": "mindspore.dtype", "value": _dtype(value["value"])}
    return {key: _converted(item) for key, item in value.items()}


def _tensor(value: dict[str, Any]) -> dict[str, Any]:
    """MindSpore's tensors have no flag that says whether they require a gradient."""
    kept = {key: item for key, item in value.items() if key != "requires_grad"}
    kept |= {"type": "mindspore.Tensor", "dtype": _dtype(value["dtype"])}
    if "data_name" in kept:
        kept["data_name"] = str(Path(kept["data_name"]).with_suffix(".npy"))
    return kept


def _dtype(text: str) -> str:
    name = text.removeprefix("torch.")
    return {"bfloat16": "BFloat16", "uint8": "UInt8"}.get(name, name.capitalize())


def _convert_files(source: Path, target: Path) -> None:
    import torch

    target.mkdir()
    for file in source.glob("*.pt"):
        values = torch.load(file, weights_only=True).detach()
        np.save(target / f"{file.stem}.npy", values.numpy())
