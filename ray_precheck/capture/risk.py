"""The risk levels of operators, by which msprobe 26.2 chooses what to record.

Comes in: the key of a call. Goes out: whether it is recorded at a risk level. Called by the scope, once
for each call. The names are facts of msprobe's `api_risk_level.py` and `support_wrap_ops.yaml`; msprobe
takes `linear` and `chain_matmul` for one name, by a missing comma, and here they are two.
"""

from functools import cache

from ray_precheck.capture.settings import ALL_RISKS, CORE

# Products, norms, embeddings, attention and fused updates. What else is core stands in `_CORE_PREFIXES`.
CORE_NAMES = frozenset(
    "_fused_adamw_ _fused_adam_ matmul __matmul__ bmm addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ mm mv"
    " addmv addmv_ addr addr_ conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
    " conv_tbc convolution _convolution chain_matmul linear bilinear linalg.matmul linalg.multi_dot"
    " linalg.vecdot batch_norm instance_norm layer_norm group_norm local_response_norm"
    " _batch_norm_impl_index batch_norm_elemt batch_norm_stats batch_norm_update_stats"
    " batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_backward_elemt"
    " batch_norm_backward_reduce embedding embedding_bag multi_head_attention_forward"
    " scaled_dot_product_attention".split()
)
# Collectives, and what torch_npu and MindSpeed bring.
_CORE_PREFIXES = frozenset({"Distributed", "NPU", "MindSpeed", "NpuDistributed"})
# Views, copies, conversions and fills.
LOW_NAMES = frozenset(
    "squeeze unsqueeze reshape reshape_as view view_as flatten unflatten expand expand_as repeat"
    " repeat_interleave tile transpose permute moveaxis movedim swapaxes swapdims chunk unsafe_chunk split"
    " split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind stack"
    " cat concat concatenate hstack vstack dstack column_stack row_stack align_as align_to atleast_1d"
    " atleast_2d atleast_3d ravel clamp unfold type_as to float double int long half bfloat16 byte char"
    " bool cfloat numpy empty empty_like zeros zeros_like ones ones_like full full_like arange linspace"
    " logspace eye identity diag diagflat diag_embed triu tril triu_indices tril_indices clone __bool__"
    " stride".split()
)
_OF_MODULES = frozenset({"Module", "Cell", "Optimizer"})


def is_risky_enough(key: str, level: str) -> bool:
    """Return whether a call is recorded at a level: ALL, FOCUS (all but `LOW_NAMES`) or CORE.

    Modules and optimizers are recorded at every level.
    """
    return level == ALL_RISKS or _is_at(key.rsplit(".", 2)[0], level)


@cache
def _is_at(full_name: str, level: str) -> bool:
    prefix, _, name = full_name.partition(".")
    if prefix in _OF_MODULES:
        return True
    is_core = name in CORE_NAMES or prefix in _CORE_PREFIXES
    return is_core if level == CORE else is_core or name not in LOW_NAMES
