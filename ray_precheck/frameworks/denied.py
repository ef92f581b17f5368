"""Names that are never called, though the frameworks list them among their operators.

Names in a dump are data: only what a framework's own registry lists is looked up, less what is
listed here. Called by the backends when they resolve a name.
"""

from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiName

_MORE_THAN_ITS_TENSORS = "it touches more than its tensors"
_UNINITIALISED = "its result is uninitialised memory"
_OF_THE_DTYPE = "its result describes the dtype, which is another one in the bench"
_OF_A_LIBRARY = "it is a kernel of one library; capture the API that calls it"
_OF_A_LAYOUT = "torch reads its indices unchecked, and a sparse layout cannot be made from extremes"
_OF_A_KIND = (
    "its input is a sparse, quantized or nested tensor, whose parts a dump does not describe"
)
_PREFIXES_OF_LIBRARIES = ("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "quantized_")
# An operator that shares its last name with something else that is refused.
_ALLOWED = frozenset({"linalg.cond"})

DENIED: dict[str, str] = {
    **dict.fromkeys(
        """__array__ __array_wrap__ __cuda_array_interface__ __deepcopy__ __delattr__ __dir__ __dlpack__
        __dlpack_device__ __format__ __getattribute__ __getstate__ __hash__ __init__
        __init_subclass__ __new__ __reduce__ __reduce_ex__ __repr__ __setattr__ __setstate__
        __sizeof__ __str__ __subclasshook__ __torch_dispatch__ __torch_function__ apply_ asnumpy
        assign_value assign_value_cpp backward const_data_ptr data_ptr data_sync delete_ flush_from_cache
        from_dlpack from_numpy get_bytes init_data is_shared itemset map2_ map_ module_load
        move_to numpy offload pin_memory record_stream register_hook
        register_post_accumulate_grad_hook remove_hook rename requires_grad_ resize resize_
        resize_as_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_ retain_grad set_
        set_rng_state share_memory_ storage storage_offset storage_type to_dlpack
        typed_storage untyped_storage convert_bytes_to_tensor print_ tensordump vjp vmap jvp
        set_cast_dtype set_const_arg set_device_address set_dtype set_init_flag set_param_info
        getitem_index_info setitem_index_info hooks is_init offload_file_path wait_pipeline
        grad value_and_grad jet derivative jacfwd jacrev get_grad deepcopy reshard depend kernel
        ms_kernel recompute_block cond""".split(),
        _MORE_THAN_ITS_TENSORS,
    ),
    **dict.fromkeys(
        [
            "empty",
            "empty_like",
            "empty_strided",
            "empty_permuted",
            "new_empty",
            "new_empty_strided",
            "empty_quantized",
        ],
        _UNINITIALISED,
    ),
    **dict.fromkeys(
        """sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
        sparse_bsc_tensor""".split(),
        _OF_A_LAYOUT,
    ),
    **dict.fromkeys(
        """coalesce is_coalesced indices values crow_indices col_indices ccol_indices row_indices
        indices_copy values_copy crow_indices_copy col_indices_copy ccol_indices_copy
        row_indices_copy sparse_dim dense_dim sparse_mask smm sspaddmm saddmm hspmm hsmm to_padded_tensor
        q_scale q_zero_point q_per_channel_axis q_per_channel_scales q_per_channel_zero_points
        qscheme int_repr""".split(),
        _OF_A_KIND,
    ),
    "__iter__": "its result is an iterator",
    "chalf": "its result is complex32, which NumPy does not hold",
    **dict.fromkeys(["element_size", "type", "result_type", "nbytes", "itemsize"], _OF_THE_DTYPE),
}


def require_allowed(name: ApiName) -> None:
    """Let pass an API that may be called.

    Raises:
        NotCheckable: it is refused by name, with the reason.
    """
    reason = denial(name.api)
    if reason:
        raise NotCheckable(f"{name.type_name} is refused: {reason}")


def denial(api: str) -> str:
    """Return why an API may not be called, "" where it may (or is unknown here).

    Every part of a dotted name counts. Private names are refused, operators (dunders) are not.
    """
    if api in _ALLOWED:
        return ""
    for part in api.split("."):
        if part in DENIED:
            return DENIED[part]
        if part.startswith(_PREFIXES_OF_LIBRARIES):
            return _OF_A_LIBRARY
        dunder = part.startswith("__") and part.endswith("__")
        if part.startswith("_") and not dunder and not part.startswith("_foreach_"):
            return "its name is private"
    return ""
