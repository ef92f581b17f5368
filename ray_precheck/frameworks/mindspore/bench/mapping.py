"""The torch callable that is the reference of a MindSpore API.

Comes in: an `ApiName` of a MindSpore dump. Goes out: a callable that takes MindSpore's arguments.
Called by the bench. `mindspore.mint` was made after torch: the reference is torch's operator of the same
name, and operators that differ have rows. Many Tensor methods and operators of `mindspore.ops` share a
name with a different operator of torch: there only verified names count, all others need rows.
`mindspore.ops` also shows many names that no model calls: `REASONS` says why they have no bench.
"""

from collections.abc import Callable
from typing import Any

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench import indexed, references
from ray_precheck.frameworks.mindspore.bench.primitives import PRIMITIVE_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_ops import OPS_NAMESAKES, OPS_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_rare import RARE_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_tensor import TENSOR_NAMESAKES, TENSOR_ROWS
from ray_precheck.frameworks.pytorch.descriptor import NAMESPACES
from ray_precheck.frameworks.pytorch.mapped import mapped
from ray_precheck.frameworks.pytorch.names import absence, resolve_torch
from ray_precheck.frameworks.pytorch.signatures import Row, names, rows
from ray_precheck.operators.refused import require_allowed
from ray_precheck.operators.table import one_table
from ray_precheck.schema.record import ApiName

# Elementwise operators of two operands, each of which may be a Python number in MindSpore.
ELEMENTWISE = names(
    """div divide floor_divide fmod remainder pow eq ne lt le gt ge less less_equal greater
    greater_equal not_equal maximum minimum atan2 arctan2 bitwise_and bitwise_or bitwise_xor
    logical_and logical_or logical_xor logaddexp logaddexp2 xlogy float_power mul gcd
    isclose"""
)
# The same, where only Tensor and mindspore.ops have them.
MORE_ELEMENTWISE = names(
    """fmax fmin true_divide hypot lcm nextafter igamma igammac heaviside copysign
    bitwise_left_shift bitwise_right_shift ldexp"""
)
_SECOND = {"pow": "exponent", "float_power": "exponent", "heaviside": "values"}
_EXTRA = {
    "div": " * rounding_mode?",
    "divide": " * rounding_mode?",
    "isclose": " rtol atol equal_nan",
}


def elementwise(name: str, first: str = "input", second: str = "") -> tuple[Row, ...]:
    """Return the rows of an elementwise operator of two operands.

    `second` is MindSpore's name of the second operand, if torch's differs.
    """
    torch_name = _SECOND.get(name, "other")
    operand = f"{second or torch_name}>{torch_name}&"
    return rows(f"Torch.{name}", f"{first}& {operand}{_EXTRA.get(name, '')}")


def alike(target: str, signature: str, text: str) -> dict[str, tuple[Row, ...]]:
    """Return the rows of operators that differ from torch's namesakes in the same way, by their names.

    `target` is where torch has them: `Torch`, `Functional`.
    """
    return {name: rows(f"{target}.{name}", signature) for name in text.split()}


_ADDITIVE = "input& other& * alpha"
_NORM = "dim keepdim * dtype"
_LOSS = "input target reduction"

MINT_ROWS: dict[str, tuple[Row, ...]] = {
    **{f"Mint.{name}": elementwise(name) for name in sorted(ELEMENTWISE)},
    "Mint.add": rows("Torch.add", _ADDITIVE),
    "Mint.sub": rows("Torch.sub", _ADDITIVE),
    "Mint.addcdiv": rows(references.linear_quotient, "input tensor1>left tensor2>right * value"),
    "Mint.addcmul": rows(references.linear_combination, "input tensor1>left tensor2>right * value"),
    "Mint.addr_": rows("Tensor.addr_", "input vec1 vec2 beta alpha"),
    "Mint.all": rows("Torch.all", "input dim? keepdim"),
    "Mint.any": rows("Torch.any", "input dim? keepdim"),
    "Mint.arcsin": rows("Torch.arcsin", "x"),
    "Mint.argsort": rows("Torch.argsort", "input dim=-1 descending=False stable=False"),
    "Mint.batch_norm_stats": rows(references.batch_norm_stats, "input eps"),
    "Mint.batch_norm_elemt": rows(
        references.batch_norm_elemt, "input weight bias mean? invstd? eps"
    ),
    "Mint.broadcast_to": rows("Torch.broadcast_to", "input shape>size"),
    "Mint.count_nonzero": rows("Torch.count_nonzero", "input dim"),
    "Mint.cumprod": rows("Torch.cumprod", "input dim dtype"),
    "Mint.cumsum": rows("Torch.cumsum", "input dim dtype"),
    "Mint.dot": rows("Torch.dot", "input other>tensor"),
    "Mint.eye": rows("Torch.eye", "n m? dtype"),
    "Mint.gather": rows("Torch.gather", "input dim index^"),
    "Mint.index_add": rows("Torch.index_add", "input dim index^ source * alpha"),
    "Mint.isnan": rows("Torch.isnan", "tensor"),
    "Mint.linalg.matrix_norm": rows("Torch.linalg.matrix_norm", f"A ord='fro' {_NORM}"),
    "Mint.linalg.norm": rows("Torch.linalg.norm", f"A ord {_NORM}"),
    "Mint.linalg.vector_norm": rows("Torch.linalg.vector_norm", f"x ord=2 {_NORM}"),
    "Mint.linalg.inv": rows("Torch.linalg.inv", "A", "input"),
    "Mint.max": rows("Torch.max", "input", "input dim:int! keepdim", "input& other&"),
    "Mint.mean": rows("Torch.mean", "input dim=None keepdim=False * dtype"),
    "Mint.median": rows("Torch.median", "input dim? keepdim"),
    "Mint.min": rows("Torch.min", "input", "input dim:int! keepdim", "input& other&"),
    "Mint.npu_gelu": rows("Functional.gelu", "input approximate"),
    "Mint.prod": rows(references.prod, "input dim keepdim * dtype"),
    "Mint.repeat_interleave": rows(
        references.repeat_interleave, "input repeats dim>axis * output_size"
    ),
    "Mint.roll": rows("Torch.roll", "input shifts dims?"),
    "Mint.scatter": rows(indexed.scatter, "input dim index src"),
    "Mint.scatter_add": rows("Torch.scatter_add", "input dim index^ src"),
    "Mint.searchsorted": rows(
        "Torch.searchsorted",
        "sorted_sequence values>input * out_int32=False right=False side? sorter?",
    ),
    "Mint.softmax": rows("Torch.softmax", "input dim * dtype"),
    "Mint.special.log_softmax": rows("Functional.log_softmax", "input dim * dtype"),
    "Mint.special.round": rows("Torch.round", "input * decimals"),
    "Mint.sum": rows("Torch.sum", "input dim=None keepdim=False * dtype"),
    "Mint.take": rows("Torch.take", "input index^"),
    "Mint.triangular_solve": rows("Torch.triangular_solve", "b A upper transpose unitriangular"),
    "Mint.where": rows("Torch.where", "condition input other", "input"),
    # torch's losses have `size_average` and `reduce` before `reduction`.
    "MintFunctional.binary_cross_entropy": rows(
        "Functional.binary_cross_entropy", "input target weight reduction"
    ),
    "MintFunctional.binary_cross_entropy_with_logits": rows(
        "Functional.binary_cross_entropy_with_logits", "input target weight reduction pos_weight"
    ),
    "MintFunctional.broadcast_to": rows("Torch.broadcast_to", "input shape>size"),
    "MintFunctional.cosine_embedding_loss": rows(
        "Functional.cosine_embedding_loss", "input1 input2 target margin reduction"
    ),
    "MintFunctional.cross_entropy": rows(
        references.cross_entropy, "input target weight ignore_index reduction label_smoothing"
    ),
    "MintFunctional.elu_ext": rows("Functional.elu", "input alpha"),
    "MintFunctional.kl_div": rows("Functional.kl_div", f"{_LOSS} log_target"),
    "MintFunctional.l1_loss": rows("Functional.l1_loss", _LOSS),
    "MintFunctional.log_softmax": rows("Functional.log_softmax", "input dim * dtype"),
    "MintFunctional.max_unpool2d": rows(
        "Functional.max_unpool2d", "input indices^ kernel_size stride padding output_size?"
    ),
    "MintFunctional.mse_loss": rows("Functional.mse_loss", _LOSS),
    "MintFunctional.nll_loss": rows(
        references.nll_loss, "input target weight ignore_index reduction"
    ),
    "MintFunctional.one_hot": rows("Functional.one_hot", "tensor^ num_classes"),
    "MintFunctional.sigmoid_": rows("Tensor.sigmoid_", "input"),
    "MintFunctional.smooth_l1_loss": rows("Functional.smooth_l1_loss", f"{_LOSS} beta"),
    "MintFunctional.soft_margin_loss": rows("Functional.soft_margin_loss", _LOSS),
    "MintFunctional.softmax": rows("Functional.softmax", "input dim dtype"),
}

_COLLECTIVE = names(
    """all_gather all_gather_into_tensor all_gather_into_tensor_uneven all_gather_matmul
    all_gather_object all_reduce all_to_all all_to_all_single all_to_all_v_c barrier
    batch_isend_irecv broadcast broadcast_object_list destroy_process_group distribute
    gather_into_tensor gather_object get_backend get_global_rank get_group_rank
    get_process_group_ranks get_rank get_world_size init_process_group irecv is_available
    is_initialized isend matmul_reduce_scatter moe_distribute_combine moe_distribute_dispatch
    new_group recv recv_object_list reduce reduce_scatter reduce_scatter_tensor
    reduce_scatter_tensor_uneven scatter_object_list scatter_tensor send send_object_list
    set_comm_ops_inplace"""
)
_COMPILER = names(
    """J SliceGetItem add_flags array_reduce array_to_scalar
    augassign_add augassign_div augassign_floordiv augassign_mod augassign_mul augassign_sub bool_and bool_eq
    bool_not bool_or broadcast_gradient_args constexpr custom_info_register dict_getitem dict_setitem dtype
    dyn_shape embed env_get environ_add environ_create environ_get environ_set eps geswitch
    get_vm_impl_fn hastype in_dict is_ is_dynamic_sequence_element_unknown is_not
    is_sequence_shape_unknown is_sequence_value_unknown is_tensor is_tensor_bool_cond isconstant
    jit_forbidden_register jit_view_unsupported linearize list_equal list_getitem list_len
    list_setitem make_dict make_list make_map_parameter make_range make_slice make_tuple merge
    mixed_precision_cast not_in_dict op_info_register partial prim_arg_register prim_attr_register
    reduced_shape ref_to_embed scalar_add scalar_cast scalar_div scalar_eq scalar_floordiv
    scalar_ge scalar_gt scalar_le scalar_log scalar_lt scalar_max scalar_min scalar_mod scalar_mul
    scalar_ne scalar_pow scalar_sub scalar_to_array scalar_to_tensor scalar_uadd scalar_usub
    shape_mul string_concat string_eq switch switch_layer tuple_div tuple_equal tuple_getitem
    tuple_len tuple_reversed tuple_setitem tuple_to_array typeof"""
)
_SPARSE = names(
    """coalesce dense_to_sparse_coo dense_to_sparse_csr make_coo_tensor make_csr_tensor
    make_row_tensor make_row_tensor_inner make_sparse_tensor row_tensor_add
    row_tensor_get_dense_shape row_tensor_get_indices row_tensor_get_values to_coo to_csr"""
)
_SPARSE_PREFIXES = ("coo_", "csr_", "coo2csr", "csr2coo")

REASONS = {
    **dict.fromkeys(_COLLECTIVE, "a collective operator needs its other ranks"),
    **dict.fromkeys(_COMPILER, "a part of MindSpore's compiler, no operator on tensors"),
    **dict.fromkeys(_SPARSE, "a dump does not describe the parts of a sparse tensor"),
}


def missing_reason(name: ApiName) -> str:
    """Return the reason why an API cannot have a bench, "" if only a row for it is missing."""
    if name.api.startswith(_SPARSE_PREFIXES):
        return REASONS["to_coo"]
    return REASONS.get(name.api, "")


_PREFIXES = ("Mint", "MintFunctional", "Tensor", "Functional")
_TORCH_PREFIXES = {
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional", "Torch"),
    "Tensor": ("Tensor", "Torch"),
    "Functional": ("Torch", "Functional"),
}
_VERIFIED = {"Tensor": TENSOR_NAMESAKES, "Functional": OPS_NAMESAKES}
ROWS = one_table(
    "references of MindSpore", MINT_ROWS, TENSOR_ROWS, OPS_ROWS, RARE_ROWS, PRIMITIVE_ROWS
)


def resolve_mindspore(name: ApiName) -> Callable[..., Any]:
    """Return the reference of a MindSpore API.

    Raises:
        NotCheckable: it is refused by name, or has neither rows nor a verified namesake in torch.
    """
    require_allowed(name, "mindspore")
    rows = ROWS.get(name.type_name)
    if rows is not None:
        return mapped(name.type_name, rows)
    has_namesake = name.prefix in _PREFIXES and name.api in _VERIFIED.get(name.prefix, (name.api,))
    for prefix in _TORCH_PREFIXES[name.prefix] if has_namesake else ():
        try:
            return resolve_torch(ApiName(prefix, name.api, name.number))
        except NotCheckable:
            continue
    reason = missing_reason(name)
    if not reason and has_namesake:
        places = (f"{NAMESPACES[prefix]}.{name.api}" for prefix in _TORCH_PREFIXES[name.prefix])
        reason = absence(" or ".join(places))
    reason = reason or "no operator of torch is known to be the same"
    raise NotCheckable(f"{name.type_name} has no bench: {reason}")
