"""Which torch function a dump's API name stands for.

Comes in: an `ApiName` with one of PyTorch's prefixes. Goes out: a callable of torch's own list of
overridable functions, or `NotCheckable`. Called by the torch backend and by the bench.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional
from torch.overrides import get_overridable_functions

from ray_precheck.backends.denied import denial
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiName

_ROOTS: dict[str, Any] = {
    "Functional": torch.nn.functional,
    "Tensor": torch.Tensor,
    "Torch": torch,
    # torch._VF holds the same functions as torch itself (lstm, gru, ...).
    "VF": torch,
}
# Functions of tensors that torch does not list as overridable, because they take no tensor
# argument that could override them, or because they only call another function.
_ALSO_ALLOWED = {
    "Torch": """arange zeros ones full linspace logspace eye scalar_tensor tensor as_tensor complex tril_indices
        triu_indices bartlett_window blackman_window hamming_window hann_window kaiser_window
        polar heaviside sigmoid tanh sparse_coo_tensor""".split(),
    "Functional": """celu_ elu_ hardsigmoid hardswish hardtanh_ leaky_relu_ relu_ rrelu_ selu_ sigmoid tanh
        threshold_ upsample upsample_bilinear upsample_nearest""".split(),
    "Tensor": [
        "new_zeros",
        "new_ones",
        "new_full",
        "new_tensor",
        "unflatten",
        "stride",
        "__iter__",
    ],
    "VF": [],
}


def resolve_torch(name: ApiName) -> Callable[..., Any]:
    """Return the function of an API name.

    Raises:
        NotCheckable: the prefix, or the name under it, is not in the allow list.
    """
    if name.prefix not in _ROOTS:
        known = ", ".join(_ROOTS)
        raise NotCheckable(
            f"prefix {name.prefix} is not supported for PyTorch (supported: {known})"
        )
    reason = denial(name.api)
    if reason:
        raise NotCheckable(f"{name.type_name} is refused: {reason}")
    function = _lookup(_ROOTS[name.prefix], name.api)
    if function is None or not _is_allowed(name, function):
        raise NotCheckable(
            f"{name.type_name} is not an operator of torch {torch.__version__} that may be called"
        )
    return function


def _lookup(root: Any, dotted: str) -> Callable[..., Any] | None:
    """Return what a dotted name stands for, None for a name that may not even be looked up.

    Modules are read as dicts: `torch.ops` makes what it is asked for, and asking torch for
    `onnx` imports it.
    """
    found = root
    for part in dotted.split("."):
        found = vars(found).get(part) if type(found) is ModuleType else getattr(found, part, None)
        if isinstance(found, ModuleType) and type(found) is not ModuleType:
            return None
    return found if callable(found) else None


def _is_allowed(name: ApiName, function: Callable[..., Any]) -> bool:
    if name.api in _ALSO_ALLOWED[name.prefix]:
        return True
    if name.prefix == "Torch" and name.api.startswith("_foreach_"):
        return True
    return function in _overridable()


@functools.cache
def _overridable() -> frozenset[Callable[..., Any]]:
    """Return every function of `torch.overrides.get_overridable_functions()`."""
    return frozenset(f for functions in get_overridable_functions().values() for f in functions)
