"""Rows of one operator, from arrays or from statistics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.dump.mapped import MappedTensors
from ray_precheck.trace.difference.measuring import Reading, Source, rows_of_operators
from ray_precheck.trace.difference.rows import ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.registry import STANDARDS, judge_rows
from ray_precheck.trace.items import Item, items_of

KEY = "Functional.linear.0.forward"


def tensor(array: Any, name: str = "", **more: Any) -> dict[str, Any]:
    """Return the element of a tensor; with a name it has a file."""
    array = np.asarray(array)
    wide = array.real.astype(np.float64)
    with np.errstate(all="ignore"):
        statistics = (
            (wide.max(), wide.min(), wide.mean(), np.sqrt((wide * wide).sum()))
            if array.size
            else ()
        )
    found: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": f"torch.{array.dtype}",
        "shape": list(array.shape),
    }
    found |= {k: float(v) for k, v in zip(("Max", "Min", "Mean", "Norm"), statistics, strict=False)}
    if name:
        found["data_name"] = f"{name}.npy"
    return found | more


def statistics(
    dtype: str = "float32", shape: Sequence[int] = (4, 4), **more: Any
) -> dict[str, Any]:
    """Return the element of a tensor of which statistics alone are known."""
    found = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape)}
    return found | {"Max": 2.0, "Min": -1.0, "Mean": 0.5, "Norm": 4.0} | more


def record(inputs: Sequence[Any], outputs: Sequence[Any], **keywords: Any) -> dict[str, Any]:
    """Return a forward record."""
    return {"input_args": list(inputs), "input_kwargs": keywords, "output": list(outputs)}


def items(inputs: Sequence[Any], outputs: Sequence[Any], **keywords: Any) -> list[Item]:
    """Return the values of a forward record."""
    return items_of(record(inputs, outputs, **keywords), KEY)


def from_statistics(
    target: Mapping[str, Any],
    golden: Mapping[str, Any],
    mode: ComparisonMode = ComparisonMode.STATISTICS,
    key: str = KEY,
) -> list[TensorRow]:
    """Return the measured rows of two records."""
    return rows_of_operators(key, key, items_of(target, key), items_of(golden, key), Reading(mode))


def from_files(
    folder: Path,
    target: tuple[Sequence[Any], Sequence[Any]],
    golden: tuple[Sequence[Any], Sequence[Any]],
    key: str = KEY,
) -> list[TensorRow]:
    """Return the measured rows of two operators whose inputs and outputs are arrays, in files."""
    sides, sources = [], []
    for name, (inputs, outputs) in (("target", target), ("golden", golden)):
        (folder / name).mkdir(exist_ok=True)
        parts: list[list[Any]] = [[], []]
        for part, arrays, word in ((0, inputs, "input"), (1, outputs, "output")):
            for number, array in enumerate(arrays):
                stem = f"{key}.{word}.{number}"
                np.save(folder / name / f"{stem}.npy", np.asarray(array))
                parts[part].append(tensor(array, stem))
        sides.append(items_of(record(*parts), key))
        sources.append(Source(MappedTensors(folder / name)))
    return rows_of_operators(key, key, sides[0], sides[1], Reading(ComparisonMode.REAL, *sources))


def judged(
    rows: list[TensorRow],
    standard: str,
    mode: ComparisonMode,
    noise: list[float | None] | None = None,
) -> list[str]:
    """Judge rows and return their results."""
    judge_rows(rows, STANDARDS[standard], mode, noise)
    return [row.result for row in rows]
