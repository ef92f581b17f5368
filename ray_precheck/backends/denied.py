"""Names that are never called, though the frameworks list them among their operators.

Names in a dump are data: only what a framework's own registry lists is looked up, less what is
listed here. Called by the backends when they resolve a name.
"""

_MORE_THAN_ITS_TENSORS = "it touches more than its tensors"
_UNINITIALISED = "its result is uninitialised memory"
_OF_THE_DTYPE = "its result describes the dtype, which is another one in the bench"

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
        resize_as_ retain_grad set_ share_memory_ storage storage_offset storage_type to_dlpack
        typed_storage untyped_storage convert_bytes_to_tensor print_ tensordump vjp vmap jvp
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
        ],
        _UNINITIALISED,
    ),
    **dict.fromkeys(["element_size", "type", "result_type", "nbytes", "itemsize"], _OF_THE_DTYPE),
}


def denial(api: str) -> str:
    """Return why an API may not be called, "" where it may (or is unknown here).

    Every part of a dotted name counts. Private names are refused, operators (dunders) are not.
    """
    for part in api.split("."):
        if part in DENIED:
            return DENIED[part]
        dunder = part.startswith("__") and part.endswith("__")
        if part.startswith("_") and not dunder and not part.startswith("_foreach_"):
            return "its name is private"
    return ""
