"""The names of the frameworks' operators, read from the frameworks that are installed.

Goes out: for each namespace the names of its functions, as a dump would call them. Called by
`scripts/coverage` and by the coverage tests.
"""

import functools
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ray_precheck.schema.record import ApiName

# Names of the namespaces that are no functions of a user: how a class is made, and what Python
# itself asks of every object.
_OF_EVERY_CLASS = frozenset(
    """__class__ __delattr__ __dir__ __format__ __getattribute__ __getattr__ __hash__ __init__
    __init_subclass__ __metaclass__ __new__ __reduce__ __reduce_ex__ __repr__ __setattr__
    __sizeof__ __str__ __subclasshook__ __torch_dispatch__ __torch_function__ __getstate__
    __setstate__ __deepcopy__ __copy__ __all_and_float_types""".split()
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of a framework: `inner` is what stands between the prefix and a name."""

    title: str
    framework: str
    prefix: str
    inner: str = ""

    def api(self, name: str) -> ApiName:
        """Return what a dump calls a function of this namespace."""
        return ApiName(self.prefix, self.inner + name, 0)


TORCH = (
    Namespace("torch", "pytorch", "Torch"),
    Namespace("torch.nn.functional", "pytorch", "Functional"),
    Namespace("torch.Tensor", "pytorch", "Tensor"),
    Namespace("torch.linalg", "pytorch", "Torch", "linalg."),
    Namespace("torch.fft", "pytorch", "Torch", "fft."),
    Namespace("torch.special", "pytorch", "Torch", "special."),
)
MINDSPORE = (
    Namespace("mindspore.mint", "mindspore", "Mint"),
    Namespace("mindspore.mint.linalg", "mindspore", "Mint", "linalg."),
    Namespace("mindspore.mint.special", "mindspore", "Mint", "special."),
    Namespace("mindspore.mint.nn.functional", "mindspore", "MintFunctional"),
    Namespace("mindspore.Tensor", "mindspore", "Tensor"),
    Namespace("mindspore.ops", "mindspore", "Functional"),
)


def function_names(namespace: Namespace) -> list[str]:
    """Return the names of a namespace's functions, sorted.

    torch: those that take a tensor. MindSpore: all that its own backend would look up.
    """
    found = _torch_names if namespace.framework == "pytorch" else _mindspore_names
    return sorted(found(namespace))


def _public(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is callable and no class; operators (dunders) are public."""
    for name in dir(root):
        private = name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        if private or name in _OF_EVERY_CLASS:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(root, name, None)
        if callable(value) and not isinstance(value, type | types.ModuleType):
            yield name, value


def _torch_names(namespace: Namespace) -> Iterator[str]:
    import torch

    root = functools.reduce(getattr, namespace.title.split(".")[1:], torch)
    for name, function in _public(root):
        if _takes_tensor(name, function):
            yield name


def _takes_tensor(name: str, function: Callable[..., Any]) -> bool:
    """Return whether torch lists a function as overridable by a tensor's class, or its schema in
    ATen has a tensor among the arguments, or it is the in-place form of a Tensor method.
    """
    import torch

    if function in _overridable():
        return True
    if getattr(torch.Tensor, name, None) in _overridable():
        return True
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    plain = [schema for schema in schemas if "out" not in schema.overload_name]
    return any("Tensor" in str(argument.type) for schema in plain for argument in schema.arguments)


@functools.cache
def _overridable() -> frozenset[Callable[..., Any]]:
    from torch.overrides import get_overridable_functions

    return frozenset(f for functions in get_overridable_functions().values() for f in functions)


def _mindspore_names(namespace: Namespace) -> Iterator[str]:
    import mindspore

    from ray_precheck.frameworks.mindspore import backend as mindspore_backend

    root = functools.reduce(getattr, namespace.title.split(".")[1:], mindspore)
    for name, _ in _public(root):
        if mindspore_backend._lookup(namespace.api(name)) is not None:
            yield name
