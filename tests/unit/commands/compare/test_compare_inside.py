"""Modules are judged by the parameters inside of them, too."""

from typing import Any

import numpy as np
import pytest

from ray_precheck.commands.compare.inside import give_gaps, parameter_gaps
from ray_precheck.trace.difference.measuring import Reading, rows_of_operators
from ray_precheck.trace.difference.rows import ERROR, WARNING, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.auto import judge_by_auto
from ray_precheck.trace.items import items_of

pytestmark = pytest.mark.unit
READING = Reading(ComparisonMode.STATISTICS)
VALUES = np.random.default_rng(0).normal(size=(8, 4))
BLOCK, UPDATE = "Module.net.block.Mlp.forward.0", "Optimizer.AdamW.0.forward"


def tensor(values: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(array.shape),
        "Max": float(array.max()),
        "Min": float(array.min()),
        "Mean": float(array.mean()),
        "Norm": float(np.linalg.norm(array)),
    }


def update(name: str, weight: Any) -> Any:
    group = {"names": [{"type": "str", "value": name}], "params": [tensor(weight)]}
    record = {"input_args": [group], "input_kwargs": {}, "output": []}
    return items_of(record, UPDATE)


def judged(name: str, moved: float, *, slack: float = 0.0) -> TensorRow:
    """Judge a block whose output is off by 1 %, where a parameter of this name is off by a share."""
    ours, theirs = update(name, VALUES * (1.0 + moved)), update(name, VALUES)
    unsteady = {item.mark: slack for item in ours if slack}
    gaps = parameter_gaps(ours, theirs, unsteady, READING)
    got, other = (
        items_of({"input_args": [tensor(VALUES)], "output": [tensor(out)]}, BLOCK)
        for out in (VALUES * 1.01, VALUES)
    )
    rows = rows_of_operators(BLOCK, BLOCK, got, other, READING)
    give_gaps(BLOCK, rows, gaps)
    judge_by_auto(rows, READING.mode)
    return next(row for row in rows if row.is_output)


@pytest.mark.parametrize("slack", [0.0, 1.0])
def test_a_module_that_got_other_weights_is_not_in_error(slack: float) -> None:
    row = judged("net.block.up.weight", 0.01, slack=slack)
    assert row.result == WARNING
    assert "it got other weights: parameters inside of it differ by 0.01" in row.messages[0]


@pytest.mark.parametrize(
    ("name", "moved"),
    [("net.block.up.weight", 1e-7), ("net.blocks.up.weight", 0.01), ("net.block.up.weight", 0.0)],
)
def test_weights_that_agree_or_are_elsewhere_excuse_nothing(name: str, moved: float) -> None:
    row = judged(name, moved)
    assert row.result == ERROR
    assert "weights" not in row.messages[0]


@pytest.mark.parametrize(("is_late", "result"), [(False, ERROR), (True, WARNING)])
def test_inputs_of_which_ranks_had_parts_show_less_of_a_drift_than_a_measured_output(
    is_late: bool, result: str
) -> None:
    key = "Functional.gelu.0.forward"
    record = {"input_args": [tensor(VALUES)], "output": [tensor(VALUES)]}
    rows = rows_of_operators(key, key, items_of(record, key), items_of(record, key), READING)
    for row in rows:
        row.is_late = is_late
        row.relative_l2 = 1e-4 if row.is_output else None
    judge_by_auto(rows, READING.mode)
    assert [row.result for row in rows if row.is_output] == [result]
