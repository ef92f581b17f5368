"""The primitives of MindSpore whose calls are recorded, their names, and their attributes.

Goes out: the classes whose calls are replaced for the time of a captured step, the name of each, and the
attributes of an instance, which a record has as keyword arguments: `ops.MatMul(transpose_b=True)(a, b)` is
`Primitive.MatMul` with a, b and transpose_b. The precheck makes the primitive again from them.

Cells of `mindspore.nn` and what `amp` rewrites compute with primitives; most functions do, too, and then the
record is that of the function.
"""

import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from mindspore import ops
from mindspore.ops import Primitive, auto_generate

from ray_precheck.capture.mindspore.names import OperatorName

PREFIX = "Primitive"
# What computes nothing from tensors: constants of Python, sequences, control flow, output to a log.
_NO_OPERATORS = frozenset(
    """
    CellBackwardHook DType Depend DynamicRankTensorShape Generator GetGrad HookBackward InsertGradientOf
    IsConstant IsInstance IsParameter IsSubClass Load MakeTuple Partial Print Rank SameTypeShape Shape
    ShapeOnly Size TensorShape TileSize TopTypeof UpdateState VersionCheck shape_mul
    """.split()
)
# The modules of `mindspore.ops` that have these, and others like them.
_HOMES_OF_NONE = frozenset(
    "primitive arg_dtype_cast _scalar_ops _sequence_ops _map_tensor_ops control_ops debug_ops".split()
)


def recorded_primitives() -> list[type]:
    """Return the classes that say how a primitive is called: those of operators, and their bases."""
    found: dict[int, type] = {id(each): each for each in _below(Primitive)}
    own = [each for each in found.values() if "__call__" in vars(each) and not _is_helper(each)]
    return [Primitive, *own, *_direct_classes()]


def _below(base: Any) -> Iterator[type]:
    for each in base.__subclasses__():
        yield each
        yield from _below(each)


def _is_helper(kind: type) -> bool:
    return kind.__name__ in _NO_OPERATORS or kind.__module__.rpartition(".")[2] in _HOMES_OF_NONE


@cache
def _direct_classes() -> dict[type, str]:
    """Return the classes of what MindSpore's functions call without a primitive, with their names there.

    `softmax_impl` takes the axis as an argument, where the primitive `Softmax` has it as an attribute.
    """
    module = getattr(auto_generate, "pyboost_inner_prim", None)
    return {
        type(value): name
        for name, value in vars(module or types.ModuleType("none")).items()
        if name.endswith("_impl") and "__call__" in vars(type(value))
    }


@cache
def primitive_name(kind: Any) -> OperatorName | None:
    """Return the name of a class of primitives, None for one that is no operator."""
    direct = _direct_classes().get(kind)
    if direct is None and _is_helper(kind):
        return None
    return OperatorName(PREFIX, direct or kind.__name__)


@cache
def entries_of_overloads() -> list[tuple[Any, Any]]:
    """Return what functions with overloads call, each with its function: `amp` rewrites `mint.add` to it."""
    named = vars(getattr(ops, "functional_overload", ops))
    return [
        (entry, named[name[1:].removesuffix("_instance")])
        for name, entry in named.items()
        if name.endswith("_instance") and name[1:].removesuffix("_instance") in named
    ]


def attributes_of(primitive: Any) -> dict[str, Any]:
    """Return the arguments with which a primitive was made."""
    given = getattr(primitive, "init_attrs", None) or {}
    return {name: value for name, value in given.items() if name != "name"}
