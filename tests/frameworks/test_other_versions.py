"""A torch that lacks a part that a bench uses, as another version may: a SKIP with that reason."""

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from records import (
    NEEDS_MINDSPORE,
    assert_passes,
    call,
    leaf,
    ms_tensor,
    statistics_checker,
    tensor,
)

import ray_precheck
from ray_precheck.check.checker import Checker
from ray_precheck.cli import main
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch import names, signatures
from ray_precheck.frameworks.pytorch.run import TorchPlace
from ray_precheck.frameworks.pytorch.signatures import rows
from ray_precheck.schema.result import TaskResult, Verdict

pytestmark = pytest.mark.frameworks
HERE = f"torch {torch.__version__} has no"
PACKAGE = Path(ray_precheck.__file__).parent


def lack(monkeypatch: pytest.MonkeyPatch, *full_names: str) -> None:
    """Take names away from torch, and what was remembered of them."""
    for full_name in full_names:
        module, _, name = full_name.rpartition(".")
        monkeypatch.delattr(importlib.import_module(module), name)
    _forget()


def _forget() -> None:
    for cached in (signatures.target_of, signatures._require_any, names._overridable):
        cached.cache_clear()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    _forget()


def assert_skipped(result: TaskResult, reason: str) -> None:
    assert (result.forward, result.backward) == (Verdict.SKIP, Verdict.SKIP)
    assert reason in result.message


@pytest.mark.parametrize(
    ("api", "args", "reason"),
    [
        # A row that names torch's operator, a namesake, and a function of ours that calls torch's.
        ("Mint.softmax", [0], "torch.softmax"),
        ("Mint.sin", [], "torch.sin or torch.nn.functional.sin"),
        ("MintFunctional.silu", [], "torch.nn.functional.silu or torch.silu"),
        ("Mint.prod", [], "torch.prod"),
    ],
)
def test_a_mindspore_call_whose_bench_torch_lacks_is_skipped(
    api: str,
    args: list[Any],
    reason: str,
    mindspore_checker: Checker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grads = [ms_tensor() if api == "Mint.prod" else ms_tensor(4)]
    payload = call(api, ms_tensor(4), *args, grads=grads)
    assert_passes(mindspore_checker.check(payload), payload)
    lack(monkeypatch, reason.split(" or ")[0])
    # Another one: a checker looks an operator up once.
    without = statistics_checker("mindspore")
    assert_skipped(without.check(payload), f"{HERE} {reason}, which would compute the bench")


def test_a_torch_call_that_torch_lacks_is_skipped(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = call("Functional.silu", leaf(2, 4), grads=[tensor(2, 4)])
    assert_passes(torch_checker.check(payload), payload)
    lack(monkeypatch, "torch.nn.functional.silu")
    assert_skipped(
        torch_checker.check(payload),
        f"{HERE} torch.nn.functional.silu, which would compute the bench",
    )


def test_an_argument_that_torch_lacks_is_told_with_the_version(torch_checker: Checker) -> None:
    found = torch_checker.check(call("Functional.silu", tensor(4), added_later=True))
    assert found.forward is Verdict.SKIP
    text = "unexpected keyword argument 'added_later'"
    assert found.message.endswith(f"{text} (torch {torch.__version__})")


def test_of_several_rows_only_that_of_the_arguments_counts() -> None:
    sin, gone = rows("Torch.sin", "input"), rows("Torch.gone", "input dim")
    bench = signatures.mapped("Mint.foo", [*sin, *gone])
    assert bench(torch.zeros(1)).item() == 0
    with pytest.raises(NotCheckable, match=r"has no torch\.gone, which would compute the bench"):
        bench(torch.zeros(1), 0)
    with pytest.raises(NotCheckable, match=r"has no torch\.gone"):
        signatures.mapped("Mint.foo", gone)


def test_a_dtype_that_torch_lacks_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "uint16", raising=False)
    with pytest.raises(NotCheckable, match=r"^torch \S+ has no torch\.uint16$"):
        TorchPlace().dtype("uint16")


@NEEDS_MINDSPORE
def test_explain_and_the_list_tell_the_reason_and_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"input_args": [ms_tensor(4)], "input_kwargs": {}, "output": [ms_tensor(4)]}
    text = {"task": "statistics", "framework": "mindspore", "dump_data_dir": None}
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({**text, "data": {"Mint.sin.0.forward": record}}))
    lack(monkeypatch, "torch.sin")
    assert main(["run_ut", "-api_info", str(dump), "--list"]) == 4
    listed = capsys.readouterr().out
    assert f"SKIP: Mint.sin has no bench: {HERE} torch.sin or" in listed
    assert f"benches as torch {torch.__version__} has them" in listed
    assert main(["explain", "Mint.sin"]) == 0
    assert f"no: Mint.sin has no bench: {HERE} torch.sin or" in capsys.readouterr().out
    assert main(["explain", "torch.gone"]) == 2
    told = f"torch.gone (torch {torch.__version__} is here and does not have it)"
    assert f"nothing is known of {told}" in capsys.readouterr().err


def foreign_names(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of what a module uses of torch and MindSpore, as far as it writes them out."""
    roots: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                roots[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            roots |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    roots = {k: full for k, full in roots.items() if full.split(".")[0] in ("torch", "mindspore")}
    yield from roots.values()
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in roots:
            yield ".".join([roots[node.id], *reversed(parts)])


def is_there(full_name: str) -> bool:
    """Whether the installed framework has a name; what stands behind a class is not looked into."""
    root, *parts = full_name.split(".")
    found: Any = importlib.import_module(root)
    for place, part in enumerate(parts, start=2):
        if not isinstance(found, ModuleType):
            return True
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:  # a module whose name its package has deleted, such as torch.optim.optimizer
            found = importlib.import_module(".".join(full_name.split(".")[:place]))
        except ImportError:
            return False
    return True


@pytest.mark.parametrize("package", ["torch", "mindspore"])
def test_the_installed_framework_has_every_name_that_the_package_writes(package: str) -> None:
    pytest.importorskip(package)
    used = {
        name
        for file in PACKAGE.rglob("*.py")
        for name in foreign_names(ast.parse(file.read_text(encoding="utf-8")))
        if name.split(".")[0] == package
    }
    assert len(used) > {"torch": 80, "mindspore": 10}[package]
    assert not is_there(f"{package}.surely.not")
    assert sorted(name for name in used if not is_there(name)) == []
