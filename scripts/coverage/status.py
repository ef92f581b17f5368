"""The names of the frameworks' operators, and whether each can be checked, asked of the package itself.

Goes out: for each namespace the names of its functions, as a dump would call them, read from the frameworks
that are installed; a `Status` for each. Called by `scripts/coverage` and by the coverage tests.
"""

import functools
import re
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ray_precheck.bench.checkable import is_random, skip_by_record
from ray_precheck.bench.run import Bench
from ray_precheck.errors import NotCheckable
from ray_precheck.operators.refused import refusal
from ray_precheck.schema.record import ApiName, ApiRecord

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


# What the bench says of a name that could be mapped and is not, unlike one with a reason.
_UNKNOWN = re.compile(r".* has no bench: no operator of torch is known")


class Kind(Enum):
    """What a name can count on."""

    BENCH = "bench"
    STATISTICS = "statistics"
    EXCLUDED = "excluded"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Status:
    """What becomes of the calls of a name, and why."""

    name: str
    kind: Kind
    reason: str = ""

    @property
    def is_covered(self) -> bool:
        return self.kind in (Kind.BENCH, Kind.STATISTICS)


def statuses(namespace: Namespace, bench: Bench) -> list[Status]:
    """Return the status of every function of a namespace, by name."""
    return [_status(namespace, name, bench) for name in function_names(namespace)]


def _status(namespace: Namespace, name: str, bench: Bench) -> Status:
    api = namespace.api(name)
    framework = namespace.framework
    record = ApiRecord(api, (), (), (), framework=framework)
    reason = refusal(api.type_name, framework) or skip_by_record(record)
    if reason:
        return Status(name, Kind.EXCLUDED, reason)
    if is_random(record):
        return Status(name, Kind.STATISTICS, "random: judged by statistics")
    try:
        bench.resolve(api)
    except NotCheckable as missing:
        text = str(missing)
        if _UNKNOWN.match(text):
            return Status(name, Kind.MISSING, "no bench is written for it")
        return Status(name, Kind.EXCLUDED, re.sub(r"^[A-Z]\S+ (has no bench: )?", "", text))
    return Status(name, Kind.BENCH)
