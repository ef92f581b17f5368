"""The functions and primitives of MindSpore whose calls are recorded, and their names in a dump.

Comes in: MindSpore's namespaces. Goes out: each function with the place where it stands, and the classes of
primitives. Called once, when the first step is captured.

A function that stands in several namespaces has the name of the one through which it is called. A record of a
primitive has its attributes as keyword arguments: `ops.MatMul(transpose_b=True)(a, b)` is `Primitive.MatMul`
with a, b and transpose_b, and the precheck makes the primitive again from them. Cells of `mindspore.nn` and
what `amp` rewrites compute with primitives; most functions do, too, and then the record is that of the
function.
"""

import types
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import mint, ops
from mindspore.ops import Primitive, auto_generate

from ray_precheck.capture.recording.arguments import silently_changed
from ray_precheck.capture.recording.recorder import CallName


class FunctionPlace(NamedTuple):
    """A function, and the attribute under which it is found."""

    owner: Any
    attribute: str
    name: CallName
    function: Any


_DUNDERS = frozenset(
    """
    __abs__ __add__ __and__ __bool__ __eq__ __floordiv__ __ge__ __getitem__ __gt__ __iadd__ __ifloordiv__
    __imatmul__ __imod__ __imul__ __invert__ __isub__ __itruediv__ __le__ __lt__ __matmul__ __mod__ __mul__
    __ne__ __neg__ __or__ __pow__ __radd__ __rfloordiv__ __rmatmul__ __rmod__ __rmul__ __rpow__ __rsub__
    __setitem__ __sub__ __truediv__ __xor__
    """.split()
)
# Methods that say something about a tensor, move it, or hand it on: no operators to blame.
_NO_OPERATORS = frozenset(
    """
    asnumpy assign_value assign_value_cpp convert_bytes_to_tensor data_ptr data_sync delete_ dim
    flush_from_cache from_dlpack get_bytes getitem_index_info hooks init_data is_contiguous
    is_floating_point is_init is_pinned is_shared item itemset move_to ndimension numel numpy offload
    offload_file_path pin_memory register_hook remove_hook requires_grad_ set_ set_cast_dtype
    set_const_arg set_device_address set_dtype set_init_flag set_param_info setitem_index_info storage
    storage_offset stride to_coo to_csr to_dlpack tolist type untyped_storage value wait_pipeline
    """.split()
)
# These are two or three calls of other methods, each of which has a record, as with msprobe.
_MADE_OF_OTHERS = frozenset("__rtruediv__ approximate_equal astype expand ptp to_".split())
# What stands beside the operators in `mindspore.ops` and `mindspore.mint`, or says something about a tensor.
_HELPERS = frozenset(
    """
    add_flags constexpr custom_info_register derivative get_grad get_vm_impl_fn grad jacfwd jacrev jet
    jit_forbidden_register jit_view_unsupported jvp kernel linearize make_row_tensor make_sparse_tensor
    move_to ms_kernel op_info_register prim_arg_register prim_attr_register print_ rank reshard
    set_comm_ops_inplace shape size tensordump value_and_grad vjp vmap
    """.split()
)
_SPARSE = ("coo_", "csr_")
_COLLECTIVES = frozenset(
    """
    all_gather all_gather_into_tensor all_reduce all_to_all all_to_all_single
    all_to_all_single_with_output_shape all_to_all_with_output_shape batch_isend_irecv broadcast gather
    gather_into_tensor irecv isend recv reduce reduce_scatter reduce_scatter_tensor scatter scatter_tensor
    send
    """.split()
)


def recorded_functions() -> list[FunctionPlace]:
    """Return the functions whose calls are recorded; of one in several modules the best name comes first."""
    return [
        *_of_module("Mint", mint),
        *_of_module("Mint", mint.linalg, "linalg."),
        *_of_module("Mint", mint.special, "special."),
        *_of_module("MintFunctional", mint.nn.functional),
        *_of_module("Functional", ops),
        *_collectives("MintDistributed", mint.distributed),
        *_collectives("Distributed", ms.communication.comm_func),
        *_of_tensor(),
    ]


def operator_name(prefix: str, name: str, *, collective: bool = False) -> CallName:
    """Return the name of a function; what ends with one underscore changes its first argument."""
    return CallName(
        prefix,
        name,
        in_place=name.endswith("_") and not name.endswith("__"),
        returns_nothing=name == "__setitem__",
        silent=silently_changed(f"{prefix}.{name}", "mindspore"),
        collective=collective,
    )


def _of_module(prefix: str, module: Any, path: str = "") -> Iterator[FunctionPlace]:
    for name in _public(module):
        function = getattr(module, name)
        home = getattr(function, "__module__", None) or ""
        if not isinstance(function, types.FunctionType) or not home.startswith("mindspore"):
            continue
        if name in _HELPERS or name.startswith(_SPARSE) or "communication" in home:
            continue
        if not home.startswith("mindspore.mint.distributed"):
            yield FunctionPlace(module, name, operator_name(prefix, f"{path}{name}"), function)


def _collectives(prefix: str, module: Any) -> Iterator[FunctionPlace]:
    for name in sorted(_COLLECTIVES):
        function = getattr(module, name, None)
        if callable(function):
            yield FunctionPlace(
                module, name, operator_name(prefix, name, collective=True), function
            )


def _of_tensor() -> Iterator[FunctionPlace]:
    own_classes = ms.Tensor.__mro__[:-1]
    for name in (*_public(ms.Tensor), *sorted(_DUNDERS)):
        if name in _NO_OPERATORS | _MADE_OF_OTHERS or not any(name in vars(c) for c in own_classes):
            continue
        function = getattr(ms.Tensor, name)
        # What belongs to the class and not to a tensor (`Tensor.from_numpy`) stays as it is.
        if isinstance(function, types.FunctionType | types.MethodDescriptorType):
            api = operator_name("Tensor", name)
            yield FunctionPlace(ms.Tensor, name, api, function)


def _public(owner: Any) -> Iterable[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


PREFIX = "Primitive"
# What computes nothing from tensors: constants of Python, sequences, control flow, output to a log.
_NO_PRIMITIVES = frozenset(
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
    found: dict[int, type] = {id(each): each for each in classes_below(Primitive)}
    own = [each for each in found.values() if "__call__" in vars(each) and not _is_helper(each)]
    return [Primitive, *own, *_direct_classes()]


def classes_below(base: Any) -> Iterator[type]:
    """Yield the classes that derive from one, those of the script among them."""
    found: list[type] = type.__subclasses__(base)
    for each in found:
        yield each
        yield from classes_below(each)


def _is_helper(kind: type) -> bool:
    return kind.__name__ in _NO_PRIMITIVES or kind.__module__.rpartition(".")[2] in _HOMES_OF_NONE


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
def primitive_name(kind: Any) -> CallName | None:
    """Return the name of a class of primitives, None for one that is no operator."""
    direct = _direct_classes().get(kind)
    if direct is None and _is_helper(kind):
        return None
    return operator_name(PREFIX, direct or kind.__name__)


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
