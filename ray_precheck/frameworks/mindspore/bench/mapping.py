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
from ray_precheck.frameworks.mindspore.bench.primitives import PRIMITIVE_ROWS
from ray_precheck.frameworks.mindspore.bench.rows import MINT_ROWS, TENSOR_NAMESAKES, TENSOR_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_ops import OPS_NAMESAKES, OPS_ROWS
from ray_precheck.frameworks.mindspore.bench.rows_rare import RARE_ROWS
from ray_precheck.frameworks.pytorch.descriptor import NAMESPACES
from ray_precheck.frameworks.pytorch.names import absence, resolve_torch
from ray_precheck.frameworks.pytorch.signatures import mapped, names
from ray_precheck.operators.refused import require_allowed
from ray_precheck.operators.table import one_table
from ray_precheck.schema.record import ApiName

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


def missing_reason(name: ApiName) -> str:
    """Return the reason why an API cannot have a bench, "" if only a row for it is missing."""
    if name.api.startswith(_SPARSE_PREFIXES):
        return REASONS["to_coo"]
    return REASONS.get(name.api, "")


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
