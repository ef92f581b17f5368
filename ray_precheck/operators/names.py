"""The full names of operators, and their names in dumps.

Comes in: the name of an API in a dump (`Functional.softmax`) and the framework of the dump, if it is
known. Goes out: the operator's full name (`torch.nn.functional.softmax`). Called by the tables of facts,
by the modules that look facts up, and by `explain`. No framework is imported.

A prefix means another namespace in each framework: `Functional` is `torch.nn.functional` in a dump of
PyTorch and `mindspore.ops` in one of MindSpore.
"""

import functools
from collections.abc import Iterator, Mapping

from ray_precheck.descriptors.known import built_in_frameworks, find_framework, is_framework
from ray_precheck.operators.primitives import FUNCTIONS

# framework of the dump -> prefix of its keys -> namespace of the full names, torch's first
NAMESPACES = {
    each.name: each.namespaces
    for each in sorted(built_in_frameworks(), key=lambda each: not each.is_bench)
}
# Modules whose functions are those of another namespace.
_SAME = {"torch.functional": "torch"}
# Further names of functions of torch, beside the one that its documentation lists. Captures of ours had
# `Torch.spmm` for every `torch.mm`.
UNDOCUMENTED = {
    "torch.dsmm": "torch.mm",
    "torch.spmm": "torch.mm",
    "torch.hsmm": "torch.hspmm",
    "torch.saddmm": "torch.sspaddmm",
}


@functools.lru_cache(1 << 14)
def full_name(type_name: str, framework: str) -> str:
    """Return the full name of the API that a dump of a framework calls `Prefix.api`.

    A prefix that the framework does not have stays: it is the prefix of a user's own operators. Of a
    function with several names it is the documented one.
    """
    prefix, _, api = type_name.partition(".")
    name = f"{_namespaces(framework).get(prefix, prefix)}.{api}"
    namespace, _, last = name.rpartition(".")
    name = f"{_SAME.get(namespace, namespace)}.{last}"
    return UNDOCUMENTED.get(name, name)


@functools.lru_cache(1 << 14)
def full_names(type_name: str, framework: str = "") -> tuple[str, ...]:
    """Return the full names that `Prefix.api` may mean: one if the framework is known, else one for each
    framework that has the prefix, torch's first; behind that of a primitive the function that computes the
    same."""
    prefix, _, api = type_name.partition(".")
    if prefix == "Primitive" and framework in ("", "mindspore"):
        same = (f"mindspore.ops.{FUNCTIONS[api]}",) if api in FUNCTIONS else ()
        return (full_name(type_name, "mindspore"), *same)
    if framework:
        return (full_name(type_name, framework),)
    return tuple(dict.fromkeys(full_name(type_name, each) for each in NAMESPACES))


def is_known_prefix(prefix: str, framework: str = "") -> bool:
    """Return whether the framework has a namespace for a prefix; any framework if none is given."""
    frameworks = [framework] if framework else list(NAMESPACES)
    return any(prefix in _namespaces(each) for each in frameworks)


def type_names(name: str) -> Iterator[tuple[str, str]]:
    """Yield the names that dumps may have for an operator, each after its framework:
    `("pytorch", "Functional.softmax")`."""
    for framework, prefixes in NAMESPACES.items():
        for prefix, namespace in prefixes.items():
            rest = name.removeprefix(f"{namespace}.")
            if rest != name:
                yield framework, f"{prefix}.{rest}"


def _namespaces(framework: str) -> Mapping[str, str]:
    """Return the namespaces of a framework by prefix; {} if no descriptor declares the framework."""
    return find_framework(framework).namespaces if is_framework(framework) else {}
