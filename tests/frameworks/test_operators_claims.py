"""Of the rows that say what the bench of an operator is, none hides another."""

import ast
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest
import torch

from ray_precheck.bench.fused import table as fused
from ray_precheck.bench.fused.table import MINDSPORE_ROWS
from ray_precheck.frameworks.mindspore.bench import mapping, rows, rows_ops, rows_rare
from ray_precheck.frameworks.mindspore.bench.mapping import REASONS, ROWS
from ray_precheck.frameworks.mindspore.bench.rows import TENSOR_NAMESAKES
from ray_precheck.frameworks.mindspore.bench.rows_ops import OPS_NAMESAKES
from ray_precheck.frameworks.pytorch import rows as torch_rows
from ray_precheck.operators.table import ARGUMENTS

pytestmark = pytest.mark.frameworks

NAMESAKES = {
    *(f"Functional.{name}" for name in OPS_NAMESAKES),
    *(f"Tensor.{name}" for name in TENSOR_NAMESAKES),
}


def test_a_fused_operator_has_no_row_in_the_mapping() -> None:
    """The fused one would be taken: four of mindspore.ops had both, and one was never run."""
    assert set(MINDSPORE_ROWS) & set(ROWS) == set()


def test_what_has_a_row_is_not_listed_as_a_namesake() -> None:
    assert (set(ROWS) | set(MINDSPORE_ROWS)) & NAMESAKES == set()


def test_what_has_a_row_is_not_listed_as_unmapped() -> None:
    names = {name.partition(".")[2] for name in {*ROWS, *MINDSPORE_ROWS, *NAMESAKES}}
    assert names & set(REASONS) == set()


@pytest.mark.parametrize(
    "module",
    [rows, rows_ops, rows_rare, mapping, fused, torch_rows],
    ids=lambda module: module.__name__,
)
def test_no_key_stands_in_a_table_twice(module: ModuleType) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("module", "table", "prefix"),
    [(rows, rows.MINT_ROWS, "Mint."), (rows, rows.TENSOR_ROWS, "Tensor.")],
    ids=["mint", "Tensor"],
)
def test_no_written_row_takes_the_place_of_a_made_one(
    module: ModuleType, table: dict[str, object], prefix: str
) -> None:
    """A table begins with the rows of elementwise operators, which a row below them would replace."""
    made = {f"{prefix}{name}" for name in rows.ELEMENTWISE | rows.MORE_ELEMENTWISE} & set(table)
    made -= {f"{prefix}{name}" for name in getattr(module, "OWN_OVERLOADS", ())}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Dict):
            written = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            assert written & made == set()


@pytest.mark.parametrize("name", sorted(ARGUMENTS.by_name))
def test_arguments_have_the_names_of_the_signature(name: str) -> None:
    module, _, function = name.rpartition(".")
    found: Any = getattr(importlib.import_module(module), function)
    found = torch.overrides.get_testing_overrides().get(found, found)
    parameters = inspect.signature(found).parameters.values()
    assert ARGUMENTS.by_name[name].split() == [
        each.name for each in parameters if each.kind is not each.KEYWORD_ONLY
    ]
