"""A captured optimizer's update through a whole run."""

import json
from pathlib import Path

import pytest
from dumps import additions, forward, tensor, value

from ray_precheck import precheck

pytestmark = pytest.mark.cluster


def adam(name: str, number: int, size: int) -> dict[str, object]:
    """Return the record of a second step, as a capture has it."""
    matrix = tensor("float32", [size, size], -0.5, 0.5)
    squares = tensor("float32", [size, size], 1e-8, 0.25)
    step = tensor("float32", [], 1.0, 1.0)
    options = {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.1}
    group = {
        **{key: value(each) for key, each in options.items()},
        "betas": [value(0.9), value(0.999)],
        "param_dtype": value("torch.float32"),
        "names": [value("weight")],
        "params": [matrix],
        "grads": [matrix],
        "state": {"exp_avg": [matrix], "exp_avg_sq": [squares], "step": [step]},
    }
    kind = value(f"torch.optim.{name.lower()}.{name}")
    return {f"Optimizer.{name}.{number}.forward": forward(group, optimizer=kind)}


def test_updates_are_checked_beside_calls_and_what_has_no_reference_is_skipped(
    tmp_path: Path, cluster_address: str
) -> None:
    data = {**additions(2), **adam("AdamW", 0, 64), **adam("AdamW", 1, 8), **adam("Rprop", 0, 4)}
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (tmp_path / "dump.json").write_text(json.dumps({**header, "data": data}))
    report = precheck(tmp_path / "dump.json", out=tmp_path, address=cluster_address)
    found = report.results.set_index("API Name")
    passed = found["Forward Test Success"].to_dict()
    assert passed == {
        "Tensor.add.0": "pass",
        "Tensor.add.1": "pass",
        "Optimizer.AdamW.0": "pass",
        "Optimizer.AdamW.1": "pass",
        "Optimizer.Rprop.0": "SKIP",
    }
    assert "the updates of SGD, Adam, AdamW" in found["Message"]["Optimizer.Rprop.0"]
    details = report.details.set_index("API Name")
    shapes = details["Shape"]
    assert [shapes[f"Optimizer.AdamW.1.forward.output.{i}"] for i in range(4)] == [
        "(8, 8)", "(8, 8)", "(8, 8)", "()",
    ]  # fmt: skip
