"""Every exception is caught in few places, each of which says why."""

import ast
from pathlib import Path

import pytest

import ray_precheck

pytestmark = pytest.mark.unit

PLACES = {
    "ray_precheck.cli.command_line",  # the edge of the command line
    "ray_precheck.foreign",  # code that is not ours
    # The same in an interpreter that has not this package.
    "ray_precheck.commands.bisect.inside.serve",
    "ray_precheck.commands.bisect.targets.torch_compile.programs",
}


def broad_excepts(source: str) -> list[int]:
    """Return the lines of a module that catch every exception."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & _names(node.type))
    ]


def _names(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_every_exception_is_caught_in_few_places() -> None:
    house = Path(ray_precheck.__file__).parent
    catching = {
        ".".join(path.relative_to(house.parent).with_suffix("").parts)
        for path in house.rglob("*.py")
        if broad_excepts(path.read_text("utf-8"))
    }
    assert catching <= PLACES


@pytest.mark.parametrize(
    ("handler", "is_broad"),
    [
        ("except:", True),
        ("except Exception:", True),
        ("except BaseException as error:", True),
        ("except (OSError, Exception):", True),
        ("except OSError:", False),
        ("except (OSError, ValueError) as error:", False),
    ],
)
def test_a_broad_except_is_found(handler: str, *, is_broad: bool) -> None:
    assert bool(broad_excepts(f"try:\n    x\n{handler}\n    pass")) is is_broad
