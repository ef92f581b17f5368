"""Operators that are never called, though the frameworks list them among their own.

Goes out: `REFUSED`, the reasons by full name, and `refusal`. Called by the backends when they resolve a
name, and by `explain`. A dump may hold any name, so refusals are broad: a name is refused in all namespaces
of its row, also in those where no version of the framework has it yet.
"""

import functools

from ray_precheck.errors import NotCheckable
from ray_precheck.operators.table import FactTable, is_known_prefix, table_of_names
from ray_precheck.schema.record import ApiName

_MORE_THAN_ITS_TENSORS = "it touches more than its tensors"
_UNINITIALISED = "its result is uninitialised memory"
_OF_THE_DTYPE = "its result describes the dtype, which is another one in the bench"
_OF_A_LIBRARY = "it is a kernel of one library; capture the API that calls it"
_AN_ITERATOR = "its result is an iterator"
_COMPLEX32 = "its result is complex32, which NumPy does not hold"
_PRIVATE = "its name is private"
# Kernels on lists of tensors, of gradient scalers, and others that torch's own Python or programs call.
PRIVATE_BUT_CALLED = (
    "_foreach_",
    "_amp_",
    "_fused_adam",
    "_fused_adagrad_",
    "_fused_sgd_",
    "_scaled_mm",
    "_scaled_grouped_mm",
    "_fake_quantize_learnable_",
    "_nested_tensor_from_mask",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
)
_PREFIXES_OF_LIBRARIES = ("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "quantized_")

_EVERYWHERE = """torch torch.nn.functional torch.Tensor torch.ops.aten torch_npu mindspore.mint
    mindspore.mint.nn.functional mindspore.Tensor mindspore.ops""".replace("\n", " ")

REFUSED: FactTable[str] = FactTable(
    "refused",
    [
        (
            f"""
            {_EVERYWHERE}:
            __array__ __array_wrap__ __cuda_array_interface__ __deepcopy__ __delattr__ __dir__
            __dlpack__ __dlpack_device__ __format__ __getattribute__ __getstate__ __hash__ __init__
            __init_subclass__ __new__ __reduce__ __reduce_ex__ __repr__ __setattr__ __setstate__
            __sizeof__ __str__ __subclasshook__ __torch_dispatch__ __torch_function__ apply_ asnumpy
            assign_value assign_value_cpp backward const_data_ptr data_ptr data_sync delete_
            flush_from_cache from_dlpack from_numpy get_bytes init_data is_shared itemset map2_ map_
            module_load move_to numpy offload pin_memory record_stream register_hook
            register_post_accumulate_grad_hook remove_hook rename requires_grad_ resize resize_
            resize_as_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ retain_grad set_
            set_rng_state share_memory_ storage storage_offset storage_type to_dlpack
            typed_storage untyped_storage convert_bytes_to_tensor print_ tensordump vjp vmap jvp
            set_cast_dtype set_const_arg set_device_address set_dtype set_init_flag set_param_info
            getitem_index_info setitem_index_info hooks is_init offload_file_path wait_pipeline
            grad value_and_grad jet derivative jacfwd jacrev get_grad deepcopy reshard depend kernel
            ms_kernel recompute_block
            torch torch.ops.aten: cond
            """,
            _MORE_THAN_ITS_TENSORS,
        ),
        (
            f"""
            {_EVERYWHERE}:
            empty empty_like empty_strided empty_permuted new_empty new_empty_strided
            empty_quantized
            """,
            _UNINITIALISED,
        ),
        (f"{_EVERYWHERE}: __iter__", _AN_ITERATOR),
        (f"{_EVERYWHERE}: chalf", _COMPLEX32),
        (f"{_EVERYWHERE}: element_size type result_type nbytes itemsize", _OF_THE_DTYPE),
    ],
)
# The refusals of this namespace also hold for prefixes that this package does not know.
_OF_STRANGERS = "torch.Tensor"
# Operators that may be called although their last name is refused in the namespace above.
_ALLOWED = table_of_names("allowed", "torch.linalg: cond")


@functools.lru_cache(1 << 14)
def refusal(type_name: str, framework: str = "") -> str:
    """Return the reason why an API that a dump calls `Prefix.api` is never called, "" if there is none.

    Each part of a dotted name is looked up. Private names are refused, but not names like `__add__`.
    """
    if _ALLOWED.of(type_name, framework):
        return ""
    prefix, _, api = type_name.partition(".")
    for part in api.split("."):
        reason = REFUSED.of(f"{prefix}.{part}", framework) or _refused_form(part)
        if not reason and not is_known_prefix(prefix, framework):
            reason = REFUSED.get(f"{_OF_STRANGERS}.{part}") or ""
        if reason:
            return reason
    return ""


def require_allowed(name: ApiName, framework: str) -> None:
    """Let pass an API of a framework that may be called.

    Raises:
        NotCheckable: it is refused by name, with the reason.
    """
    reason = refusal(name.type_name, framework)
    if reason:
        raise NotCheckable(f"{name.type_name} is refused: {reason}")


def _refused_form(part: str) -> str:
    if part.startswith(_PREFIXES_OF_LIBRARIES):
        return _OF_A_LIBRARY
    dunder = part.startswith("__") and part.endswith("__")
    if part.startswith("_") and not dunder and not part.startswith(PRIVATE_BUT_CALLED):
        return _PRIVATE
    return ""
