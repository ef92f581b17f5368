"""Every row about an operator names one that a supported framework has."""

import importlib
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
from records import NEEDS_MINDSPORE

from ray_precheck.bench.fused.table import NPU_ROWS
from ray_precheck.bench.optimizers import OPTIMIZER_ROWS
from ray_precheck.check.random.rules import RULES
from ray_precheck.commands.explain.asked import TABLES
from ray_precheck.inputs.roles.table import TABLE as ROLES
from ray_precheck.operators.refused import REFUSED
from ray_precheck.operators.table import NAMESPACES, FactTable, type_names
from ray_precheck.schema.record import ApiName
from scripts.coverage.documented import PACKAGES, documented_versions, installed_versions, told
from scripts.coverage.main import DOCS

pytestmark = pytest.mark.frameworks

ALL: list[FactTable[Any]] = [*TABLES, RULES, ROLES]


def exists(name: str) -> bool:
    """Whether an installed framework has an operator of this full name; those of torch_npu and MindSpeed,
    which are not to be had here, are the ones that have a bench."""
    framework = name.split(".")[0]
    if framework == "mindspore":
        return _in_mindspore(name)
    if name.startswith("torch.optim."):  # Lion is in packages of others.
        return any(type_name in OPTIMIZER_ROWS for _, type_name in type_names(name))
    if framework in ("torch_npu", "mindspeed"):
        return any(type_name in NPU_ROWS for _, type_name in type_names(name))
    return _at(name) is not None


def _in_mindspore(name: str) -> bool:
    from ray_precheck.frameworks.mindspore.backend import _lookup

    if name.startswith("mindspore.ops.operations."):  # a class, whose instances are called
        return _at(name) is not None
    for framework, type_name in type_names(name):
        prefix, _, api = type_name.partition(".")
        # What its own backend would call; methods and attributes of its tensors besides.
        if framework == "mindspore" and _lookup(ApiName(prefix, api, 0)) is not None:
            return True
    return name.startswith("mindspore.Tensor.") and _at(name) is not None


def _at(name: str) -> Any:
    root, *parts = name.split(".")
    found: Any = importlib.import_module(root)
    for part in parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = getattr(found, part, None)
    return found


def either_form(name: str) -> bool:
    """Whether an operator is there, or the in-place form of it, which has the same roles."""
    return exists(name) or exists(f"{name}_")


def asked(names: Iterable[str]) -> list[str]:
    """Return names without those of a framework that is not installed."""
    absent = PACKAGES.keys() - installed_versions().keys()
    return [name for name in names if name.split(".")[0] not in absent]


def missing_here(missing: list[str]) -> list[str]:
    """Return names that are missing; a skip, where other versions are installed than the tables' own."""
    kept, here = documented_versions(DOCS.read_text(encoding="utf-8")), installed_versions()
    if missing and here != kept:
        pytest.skip(f"the tables are kept for {told(kept)}; {told(here)} lack {', '.join(missing)}")
    return missing


@pytest.mark.parametrize(
    "table", [table for table in ALL if table is not REFUSED], ids=lambda table: table.title
)
def test_every_row_names_operators_that_a_framework_has(table: FactTable[Any]) -> None:
    is_there = either_form if table is ROLES else exists
    assert missing_here([name for name in asked(table.by_name) if not is_there(name)]) == []


# Named tensors and typed storages of earlier versions of torch, a decorator of MindSpore.
OF_OTHER_VERSIONS = {"recompute_block", "rename", "typed_storage"}


@NEEDS_MINDSPORE  # A name may be one of MindSpore's alone.
def test_every_refused_name_is_one_of_some_namespace() -> None:
    """Refusals are broad: each name stands for many namespaces, at least one of which has it."""
    lasts: dict[str, bool] = {}
    for name in REFUSED.by_name:
        last = name.rpartition(".")[2]
        if not lasts.get(last):
            lasts[last] = exists(name)
    missing = {last for last, found in lasts.items() if not found}
    assert missing_here(sorted(missing - OF_OTHER_VERSIONS)) == []


def test_every_namespace_of_a_row_is_one_that_dumps_name() -> None:
    known = {space for prefixes in NAMESPACES.values() for space in prefixes.values()}
    for table in ALL:
        for name in table.by_name:
            assert any(name.startswith(f"{space}.") for space in known), name
