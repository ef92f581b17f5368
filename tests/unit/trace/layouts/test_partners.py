"""Which calls of two layouts belong together."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.trace.layouts.parts import of_array
from ray_precheck.trace.layouts.together import put_together
from ray_precheck.trace.side import open_side

pytestmark = pytest.mark.unit
RANDOM = np.random.default_rng(0)
X, WEIGHT, BIAS = RANDOM.normal(size=(2, 4)), RANDOM.normal(size=(4, 6)), RANDOM.normal(size=6)
Record = dict[str, Any]


def tensor(values: Any, parameter: str = "") -> Record:
    array = np.asarray(values)
    found = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape)}
    return {**found, **of_array(array), **({"parameter": parameter} if parameter else {})}


def write(folder: Path, calls: list[tuple[str, str, list[Record], Record]]) -> Path:
    """Write a capture of calls, each with its name, its module, what it gets and what it gives."""
    folder.mkdir(parents=True)
    records, parents = {}, {}
    for name, module, inputs, output in calls:
        key = f"{name}.forward"
        records[key] = {"input_args": inputs, "input_kwargs": {}, "output": [output]}
        parents[key] = f"Module.{module}.Linear.forward.0" if module else None
    header = {"task": "statistics", "level": "mix", "framework": "pytorch"}
    path = folder / "dump.json"
    path.write_text(json.dumps({**header, "data": records}), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
    return path


def by_hand(folder: Path, rank: int) -> Path:
    """Write a row-parallel product by hand: addends that are exchanged, and a bias behind."""
    part, own = np.split(X, 2, 1)[rank], np.split(WEIGHT, 2)[rank]
    made, whole = tensor(part @ own), tensor(X @ WEIGHT)
    calls = [
        ("Functional.linear.0", "proj", [tensor(part), tensor(own, "proj.weight")], made),
        *((f"Tensor.{name}.0", "proj", [made], made) for name in ("transpose", "contiguous")),
        ("Distributed.all_reduce.0", "proj", [made], whole),
        *((f"Tensor.{name}.1", "proj", [whole], whole) for name in ("transpose", "contiguous")),
        ("Tensor.__add__.0", "proj", [whole, tensor(BIAS, "proj.bias")], tensor(X @ WEIGHT + BIAS)),
    ]
    return write(folder, calls)


def distributed(folder: Path, rank: int) -> Path:
    """Write the same product of distributed tensors, whose bias has no name where it is an addend."""
    part, own = np.split(X, 2, 1)[rank], np.split(WEIGHT, 2)[rank]
    bias = BIAS if rank == 0 else np.zeros_like(BIAS)
    inputs = [tensor(part), tensor(own, "proj.weight"), tensor(bias)]
    made, whole = tensor(part @ own + bias), tensor(X @ WEIGHT + BIAS)
    calls = [
        ("Tensor.view_as.0", "proj", [inputs[0], inputs[0]], inputs[0]),
        ("Functional.linear.0", "proj", inputs, made),
        *((f"Torch.{name}.0", "proj", [made], made) for name in ("chunk", "cat")),
        ("Distributed.functional.all_reduce.0", "proj", [made], whole),
        ("Tensor.view_as.1", "proj", [whole, whole], whole),
    ]
    return write(folder, calls)


def test_a_product_that_its_module_runs_once_has_its_partner_whatever_its_bias(
    tmp_path: Path,
) -> None:
    made = tmp_path / "target", tmp_path / "golden"
    with ExitStack() as stack:
        sides = [
            [
                stack.enter_context(open_side(write_rank(tmp_path / f"{number}{rank}", rank)))
                for rank in range(2)
            ]
            for number, write_rank in enumerate((by_hand, distributed))
        ]
        put_together(sides[0], sides[1], ("tp=2", "tp=2"), made)
    target, golden = (json.loads((each / "dump.json").read_text())["data"] for each in made)
    ours, theirs = (each["Functional.linear.0.forward"] for each in (target, golden))
    assert ours["pair"] == theirs["pair"]
    assert len(ours["input_args"]) == len(theirs["input_args"]) == 3
    assert "Tensor.__add__.0.forward" not in target
