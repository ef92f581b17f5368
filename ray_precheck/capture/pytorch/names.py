"""What a call of torch is: the name of its function in a dump, and how the call was written.

Comes in: a function as torch hands it to a `TorchFunctionMode`, with its arguments and the frame of the
caller. Goes out: its prefix and name, or None where its calls are not recorded; and the arguments as they
stand in the source. Names are looked up once for each function.

A function is found by what it is, not by the name it was called by, so that `from torch import relu` is
seen too. One that stands in several places (`torch.conv2d` is `torch.nn.functional.conv2d`) has the first
of Functional, Torch, Tensor, and there the name that torch documents (`torch.mm` is `torch.spmm` too).

torch hands the arguments of its Python functions on with all defaults filled in, and most of them by
keyword. The number of arguments by position and the names of the others stand in the caller's bytecode.
Where they cannot be read there (`f(*args)`, a call out of C), what equals its default is left out.
"""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional

from ray_precheck.capture.recording.arguments import argument_places, silently_changed
from ray_precheck.capture.recording.recorder import CallName
from ray_precheck.operators.table import UNDOCUMENTED

# Prefixes of msprobe for operators of these namespaces; the others have the namespace's own name.
_OP_PREFIXES = {"aten": "Aten", "npu": "NPU"}
_NO_OPERATORS = frozenset({"prim", "profiler", "inductor", "_c10d_functional"})
# The classes of what `torch.ops.{namespace}.{name}` gives, and of one of its overloads.
_OPERATORS = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))
# Modules whose functions stand in `torch.nn.functional` and belong there; None are those of C.
_OWN_MODULES = (
    None,
    "torch",
    *(f"torch.{name}" for name in ("nn.functional", "_C._nn", "_jit_internal")),
)
_SUBMODULES = ("linalg", "fft", "special", "sparse", "nested")
# Functions of torch with a private name that other functions of torch call: those of public ones without an
# override of their own, and those that quantized and nested layers call.
_CALLED_WITHIN = {"_sparse_sum": "sparse.sum"}
_PRIVATE = (
    "_foreach_",
    "_fused_",
    "_scaled_",
    "_amp_",
    "_fake_quantize_learnable_",
    "_nested_",
    "_sparse_",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
)


class FunctionNames(dict[Any, "CallName | None"]):
    """The names by function; one that is asked for the first time is looked up."""

    def __init__(self, recorded_namespaces: Iterable[str] = ()) -> None:
        super().__init__()
        # They are kept as long as the names, for all steps.
        self.forms = CallForms()
        self._standard = _standard_functions()
        self._namespaces = frozenset(recorded_namespaces)

    def __missing__(self, function: Any) -> "CallName | None":
        name = self._standard.get(function) or self._of_operator(function)
        self[function] = name
        return name

    def _of_operator(self, function: Any) -> "CallName | None":
        """Return the name of an operator that is called as `torch.ops.{namespace}.{name}`."""
        if not isinstance(function, _OPERATORS):
            return None
        packet: Any = getattr(function, "overloadpacket", function)
        namespace, _, name = packet._qualified_op_name.partition("::")
        if self._namespaces and namespace not in self._namespaces and namespace not in _OP_PREFIXES:
            return None
        if name in _NOT_RECORDED or namespace in _NO_OPERATORS:
            return None
        found = call_name(_OP_PREFIXES.get(namespace, namespace), name)
        return found._replace(silent=found.silent | _written_by(packet))


def _written_by(packet: Any) -> frozenset[str]:
    """Return the arguments that the schemas of an operator say it writes to; kernels of others may do so
    without a new version."""
    schemas = (getattr(packet, overload)._schema for overload in packet.overloads())
    return argument_places(
        (place, argument.name)
        for schema in schemas
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def call_name(prefix: str, name: str, is_python: bool = False) -> CallName:
    """Return the name of a function; what ends with one underscore changes its first argument."""
    in_place = name in _IN_PLACE_DUNDERS or (name.endswith("_") and not name.endswith("__"))
    silent = silently_changed(f"{prefix}.{name}", "pytorch")
    return CallName(prefix, name, in_place, name == "__setitem__", is_python, silent)


@functools.cache
def _standard_functions() -> dict[Callable[..., Any], CallName]:
    """Return the functions of torch's namespaces; of several documented names in one, that which torch
    gave it."""
    found: dict[Callable[..., Any], CallName] = {}
    for prefix, root, names in _roots():
        for name in names:
            function = getattr(root, name, None)
            if name in _NOT_RECORDED or isinstance(function, type) or not callable(function):
                continue
            if name.startswith("__") and prefix != "Tensor":
                continue
            before = found.get(function)
            own_name = getattr(function, "__name__", "")
            if before is not None and before.prefix == prefix and name != own_name:
                continue
            is_python = isinstance(function, types.FunctionType)
            found[function] = call_name(prefix, _full(root, name), is_python)
    return found


def _roots() -> Iterable[tuple[str, Any, Iterable[str]]]:
    yield "Tensor", torch.Tensor, dir(torch.Tensor)
    for submodule in _SUBMODULES:
        module = getattr(torch, submodule)
        yield "Torch", module, [name for name in dir(module) if not name.startswith("_")]
    of_torch = [name for name in dir(torch) if f"torch.{name}" not in UNDOCUMENTED]
    yield "Torch", torch, [name for name in of_torch if not _is_hidden(name)]
    functional = torch.nn.functional
    public = [name for name in dir(functional) if not _is_hidden(name)]
    yield "Functional", functional, [name for name in public if _is_own(functional, name)]


def _is_hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith(_PRIVATE)


def _is_own(functional: types.ModuleType, name: str) -> bool:
    """Return whether a name of `torch.nn.functional` is a function of it, and no import of a helper."""
    module = getattr(getattr(functional, name), "__module__", None)
    return module in _OWN_MODULES


def _full(root: Any, name: str) -> str:
    submodule = getattr(root, "__name__", "").rpartition(".")[2]
    if root is torch:
        return _CALLED_WITHIN.get(name, name)
    return f"{submodule}.{name}" if submodule in _SUBMODULES else name


class CallForm(NamedTuple):
    """A call in the source: how many arguments have no name, and the names of the others."""

    positional: int
    keywords: tuple[str, ...]


class _Parameters(NamedTuple):
    names: tuple[str, ...]
    defaults: dict[str, Any]


class CallForms:
    """Remembers the form of each call by its place in the bytecode."""

    def __init__(self) -> None:
        # By the identity of the code, whose own hash takes longer than the look; the code is kept alive.
        self._forms: dict[tuple[int, int], tuple[CodeType, CallForm | None]] = {}
        self._parameters: dict[Callable[..., Any], _Parameters | None] = {}

    def written(
        self,
        function: Callable[..., Any],
        caller: FrameType | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_method: bool,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as the caller wrote them; `is_method` if the first is the object."""
        parameters = self._of(function)
        if parameters is None:
            return args, kwargs
        given = dict(zip(parameters.names, args, strict=False)) | kwargs
        form = None if caller is None else self._form(caller)
        if form is not None:
            positional = form.positional + is_method
            names = parameters.names[:positional]
            if (
                positional >= 1
                and len(names) == positional
                and all(name in given for name in (*names, *form.keywords))
            ):
                return (
                    tuple(given[name] for name in names),
                    {name: given[name] for name in form.keywords},
                )
        defaults = parameters.defaults
        return args, {
            name: value
            for name, value in kwargs.items()
            if not (name in defaults and _same(defaults[name], value))
        }

    def _of(self, function: Callable[..., Any]) -> _Parameters | None:
        if function not in self._parameters:
            self._parameters[function] = _parameters_of(function)
        return self._parameters[function]

    def _form(self, frame: FrameType) -> CallForm | None:
        code, offset = frame.f_code, frame.f_lasti
        known = self._forms.get((id(code), offset))
        if known is None:
            known = self._forms[id(code), offset] = (code, _form_at(code, offset))
        return known[1]


def _same(default: Any, value: Any) -> bool:
    return default is value or (type(default) in (int, float, str, bool) and default == value)


def _parameters_of(function: Callable[..., Any]) -> _Parameters | None:
    """Return the parameters of a function, None where it takes any.

    One that chooses between two by a flag (`max_pool2d`) hands on what it got; the parameters are those of
    either.
    """
    closure = getattr(function, "__closure__", None)
    chosen = inspect.getclosurevars(function).nonlocals.get("if_false") if closure else None
    try:
        signature = inspect.signature(function if chosen is None else chosen)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return _Parameters(tuple(p.name for p in parameters), defaults)


def _form_at(code: CodeType, offset: int) -> CallForm | None:
    """Return the form of the call at an offset of the bytecode, None for another instruction.

    Python 3.10 has CALL_FUNCTION, CALL_METHOD and CALL_FUNCTION_KW, 3.11 and 3.12 KW_NAMES before CALL,
    later ones CALL and CALL_KW; the names of keywords are a constant in all of them. The offset of a call
    of a Python function may lie behind the instruction, in the caches that belong to it.
    """
    names: tuple[str, ...] = ()
    constant: Any = None
    form: CallForm | None = None
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        form = _form_of(instruction, names, constant)
        if instruction.opname == "KW_NAMES":
            names = code.co_consts[instruction.arg or 0]
        elif instruction.opname.startswith("CALL"):
            names = ()
        constant = instruction.argval if instruction.opname == "LOAD_CONST" else None
    return form


def _form_of(
    instruction: dis.Instruction, names: tuple[str, ...], constant: Any
) -> CallForm | None:
    count = instruction.arg or 0
    if instruction.opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD"):
        return CallForm(count - len(names), names)
    if instruction.opname in ("CALL_FUNCTION_KW", "CALL_KW") and isinstance(constant, tuple):
        return CallForm(count - len(constant), constant)
    return None


# What only asks a tensor something, or hands it on: no operator to blame. `backward` and its like run
# operators that have records of their own.
_NOT_RECORDED = frozenset(
    """
    __array__ __array_wrap__ __complex__ __contains__ __cuda_array_interface__ __deepcopy__
    __dir__ __dlpack__ __dlpack_device__ __float__ __format__ __hash__ __index__ __int__ __iter__ __len__
    __long__ __nonzero__ __reduce__ __reduce_ex__ __repr__ __reversed__ __setstate__ __torch_dispatch__
    __new__ __init__ __init_subclass__ __subclasshook__ __getattribute__ __setattr__ __delattr__
    __sizeof__ __str__ __class__ __array_priority__ __torch_function__ __getstate__
    _backward_hooks _base _cdata _coalesced_ _conj_physical _dimI _dimV _fix_weakref _grad _grad_fn
    _has_symbolic_sizes_strides _indices _is_view _is_zerotensor _make_subclass _make_wrapper_subclass
    _make_dtensor _nested_tensor_size _nested_tensor_strides _nnz _post_accumulate_grad_hooks
    _python_dispatch _reduce_ex_internal _rev_view_func_unsafe _typed_storage _update_names _values
    _version _view_func _view_func_unsafe _to_dense _is_cow_tensor _lazy_clone _sym_storage_offset
    _clear_non_serializable_cached_data _use_count
    apply_ backward can_cast const_data_ptr data data_ptr dense_dim detach detach_ device dim
    dim_order dtype element_size fix get_default_dtype get_device get_num_threads grad grad_fn
    has_names is_coalesced is_complex is_conj is_contiguous is_distributed is_floating_point
    is_inference is_neg is_nonzero is_pinned is_same_size is_set_to is_shared is_signed
    is_storage is_tensor is_vulkan_available item itemsize layout map2_ map_ module_load mutable_data_ptr
    name names nbytes ndim ndimension nelement numel numpy output_nr pin_memory promote_types q_scale
    q_zero_point qscheme record_stream refine_names register_hook
    register_post_accumulate_grad_hook reinforce rename rename_ requires_grad requires_grad_ resize
    resize_ resize_as result_type retain_grad retains_grad set_ shape share_memory_ size sparse_dim
    storage storage_offset storage_type stride sym_int sym_max sym_min sym_not tolist type
    type_as_ unsafe_get untyped_storage volatile
    compile vmap save load manual_seed seed initial_seed get_rng_state set_rng_state
    _assert _assert_async _functional_assert_async _has_compatible_shallow_copy_type
    _is_functional_tensor _is_all_true _is_any_true is_grad_enabled is_inference_mode_enabled
    broadcast_shapes broadcast_tensors_shape handle_torch_function has_torch_function
    has_torch_function_unary has_torch_function_variadic boolean_dispatch
    _sync _to_functional_tensor _from_functional_tensor _enable_functionalization
    _disable_functionalization _mirror_autograd_meta_to _freeze_functional_tensor _print
    set_default_dtype set_default_device set_grad_enabled set_num_threads typename
    from_numpy frombuffer from_file from_dlpack utils_unpack_dual unpack_dual
    """.split()
)
_IN_PLACE_DUNDERS = frozenset(
    "__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__"
    " __ilshift__ __irshift__ __idiv__ __setitem__".split()
)
