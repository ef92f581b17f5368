"""A public name stands for one thing: no two modules of the package, or of scripts/, share one."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

import ray_precheck

pytestmark = pytest.mark.unit

PACKAGE = Path(ray_precheck.__file__).parent
SCRIPTS = PACKAGE.parent / "scripts"
# Functions that are the same step of different things, and so are called alike.
STEPS = {
    "main",  # of a process
    "open_target",  # of a process in which a target of bisect lives
    "flushed_denormals",  # of a framework
    "view",  # of the files of a command
}
# Benches are named for the operator that they compute, which several frameworks have.
BENCHES = ("ray_precheck.bench.", "ray_precheck.frameworks.mindspore.bench.")


def doubled(sources: Iterable[tuple[str, str]], kind: type[ast.stmt]) -> dict[str, list[str]]:
    """Return the public names of a kind that several modules define, with these modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, source in sources:
        for statement in ast.parse(source).body:
            if isinstance(statement, kind) and not statement.name.startswith("_"):  # type: ignore[attr-defined]
                homes[statement.name].append(module)  # type: ignore[attr-defined]
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def modules_below(folder: Path) -> list[tuple[str, str]]:
    """Return the dotted names of the modules below a folder, with their sources."""
    return [
        (".".join(path.relative_to(folder.parent).with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.py"))
    ]


@pytest.mark.parametrize("folder", [PACKAGE, SCRIPTS], ids=lambda folder: folder.name)
def test_no_two_classes_have_one_name(folder: Path) -> None:
    assert doubled(modules_below(folder), ast.ClassDef) == {}


@pytest.mark.parametrize("folder", [PACKAGE, SCRIPTS], ids=lambda folder: folder.name)
def test_no_two_functions_have_one_name_but_steps_and_benches(folder: Path) -> None:
    found = {
        name: modules
        for name, modules in doubled(modules_below(folder), ast.FunctionDef).items()
        if name not in STEPS and not all(module.startswith(BENCHES) for module in modules)
    }
    assert found == {}


def test_doubled_names_are_found_with_their_modules() -> None:
    sources = [
        ("a", "class Row: ...\ndef step(): ...\nclass _Own: ..."),
        ("b", "class Row: ...\nclass Span: ...\ndef step(): ..."),
        ("c", "class _Own: ...\nclass Outer:\n    class Span: ..."),
    ]
    assert doubled(sources, ast.ClassDef) == {"Row": ["a", "b"]}
    assert doubled(sources, ast.FunctionDef) == {"step": ["a", "b"]}
