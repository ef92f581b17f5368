"""Every operator of the installed frameworks whose signature lets it draw is classified."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from records import NEEDS_MINDSPORE

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench.mapping import resolve_mindspore
from ray_precheck.operators.drawing import DRAWING
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.frameworks

# Parameters by which an operator of torch or MindSpore says that it may draw.
_DRAWING = re.compile(
    r"(\w+_)?(dropout|training|train|generator|seed)|dropout_(p|rate|ratio)|keep_prob|seed\d"
)


def _draws(parameters: Iterator[str] | list[str]) -> bool:
    return any(_DRAWING.fullmatch(name) for name in parameters)


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def torch_names() -> Iterator[tuple[str, list[str]]]:
    """Yield each name that a dump of torch may call, and all parameters that are known of it."""
    import torch
    from torch.overrides import get_testing_overrides

    from ray_precheck.frameworks.pytorch.names import _ROOTS, resolve_torch

    by_schema: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        last = schema.name.split("::")[1]
        by_schema.setdefault(last, []).extend(argument.name for argument in schema.arguments)
    dummies = get_testing_overrides()
    modules = {"nn.init": torch.nn.init, "special": torch.special, "linalg": torch.linalg}
    for prefix, root in _ROOTS.items():
        names = dir(root)
        if prefix == "Torch":
            names += [f"{path}.{name}" for path, module in modules.items() for name in dir(module)]
        for name in names:
            try:
                function = resolve_torch(ApiName(prefix, name, 0))
            except NotCheckable:
                continue
            last = name.rsplit(".", 1)[-1]
            known = _parameters(function) + _parameters(dummies.get(function))
            yield f"{prefix}.{name}", [*known, *by_schema.get(last, [])]


def mindspore_names() -> Iterator[tuple[str, list[str]]]:
    """Yield each name that a dump of MindSpore may call and that has a bench, with its parameters."""
    import mindspore as ms
    from mindspore import mint, ops

    roots = {
        "Mint": mint,
        "MintFunctional": mint.nn.functional,
        "Functional": ops,
        "Tensor": ms.Tensor,
    }
    for prefix, root in roots.items():
        for name in dir(root):
            try:
                resolve_mindspore(ApiName(prefix, name, 0))
            except NotCheckable:
                continue
            yield f"{prefix}.{name}", _parameters(getattr(root, name))


@pytest.mark.parametrize(
    ("framework", "names", "at_least"),
    [
        ("pytorch", torch_names, 40),
        pytest.param("mindspore", mindspore_names, 12, marks=NEEDS_MINDSPORE),
    ],
)
def test_every_operator_that_may_draw_is_classified(
    framework: str, names: Any, at_least: int
) -> None:
    """One that is not is compared element by element, and another draw is an error or, under a wide
    standard, a false pass: put its name into `operators.drawing`."""
    drawing = [name for name, parameters in names() if _draws(parameters)]
    assert len(drawing) >= at_least
    missing = [name for name in drawing if DRAWING.of(name, framework) is None]
    assert missing == []
