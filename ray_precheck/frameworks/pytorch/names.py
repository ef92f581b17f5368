"""Which torch function a dump's API name stands for.

Comes in: an `ApiName` with one of PyTorch's prefixes. Goes out: a callable of torch's own list of
overridable functions, or `NotCheckable`. Called by the torch backend and by the bench.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional
from torch.overrides import get_overridable_functions

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.descriptor import NAMESPACES
from ray_precheck.operators.refused import PRIVATE_BUT_CALLED, require_allowed
from ray_precheck.schema.record import ApiName

_ROOTS: dict[str, Any] = {
    "Functional": torch.nn.functional,
    "Tensor": torch.Tensor,
    "Torch": torch,
    # torch._VF holds the same functions as torch itself (lstm, gru, ...).
    "VF": torch,
}
# Functions of tensors that torch does not list as overridable, because they take no tensor
# argument that could override them, or because they only call another function.
_ALSO_ALLOWED = {
    "Torch": frozenset(
        """arange zeros ones full linspace logspace eye scalar_tensor tensor as_tensor asarray complex
        tril_indices triu_indices bartlett_window blackman_window hamming_window hann_window
        kaiser_window polar heaviside sigmoid tanh range vander fill as_strided segment_reduce
        sparse_coo_tensor fft.fftfreq fft.rfftfreq embedding_renorm_
        sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
        sparse_bsc_tensor sparse.mm sparse.addmm sparse.sum sparse.softmax sparse.log_softmax
        sparse.sampled_addmm sparse.spdiags sparse.spsolve nested.to_padded_tensor
        _scaled_mm _scaled_grouped_mm _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_learnable_per_channel_affine _nested_tensor_from_mask
        _transformer_encoder_layer_fwd _native_multi_head_attention
        rand rand_like randn randn_like randint randint_like randperm normal""".split()
    ),
    "Functional": frozenset(
        """hardsigmoid hardswish sigmoid tanh upsample upsample_bilinear upsample_nearest
        scaled_mm grouped_mm scaled_grouped_mm""".split()
    ),
    "Tensor": frozenset(
        """new_zeros new_ones new_full new_tensor unflatten stride to_sparse_coo
        to_sparse_csr to_sparse_csc to_sparse_bsr to_sparse_bsc""".split()
    ),
    "VF": frozenset[str](),
}

# What makes sparse tensors.
_UNCHECKED = frozenset(
    """sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
    sparse_bsc_tensor""".split()
)
_ABSENT = object()
# Methods that move to an accelerator: here to the device under test, and for the bench to the CPU.
_MOVES = frozenset("cuda hpu ipu mtia npu xpu".split())


def resolve_torch(name: ApiName) -> Callable[..., Any]:
    """Return the function of an API name.

    Raises:
        NotCheckable: the prefix, or the name under it, is not in the allow list, or the installed torch
            does not have the name, which another version may have.
    """
    if name.prefix not in _ROOTS:
        known = ", ".join(_ROOTS)
        raise NotCheckable(
            f"prefix {name.prefix} is not supported for PyTorch (supported: {known})"
        )
    require_allowed(name, "pytorch")
    if name.prefix == "Tensor" and name.api in _MOVES:
        return _moved
    if name.prefix == "Torch" and name.api in _UNCHECKED:
        return functools.partial(_checked, getattr(torch, name.api))
    function = _lookup(_ROOTS[name.prefix], name.api)
    if function is _ABSENT:
        raise NotCheckable(absence(f"{NAMESPACES[name.prefix]}.{name.api}"))
    if not callable(function) or not _is_allowed(name, function):
        raise NotCheckable(
            f"{name.type_name} is not an operator of torch {torch.__version__} that may be called"
        )
    return function  # type: ignore[no-any-return]


def _moved(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return a copy: a tensor of a call is already on the device that is asked for."""
    return tensor.clone()


def _checked(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a sparse tensor of indices that are looked at first: kernels read them unchecked."""
    return function(*args, **{**kwargs, "check_invariants": True})


def absence(full_name: str) -> str:
    """Return the reason of a SKIP where the installed torch lacks a part that a bench uses."""
    return f"torch {torch.__version__} has no {full_name}, which would compute the bench"


def _lookup(root: Any, dotted: str) -> Any:
    """Return the object of a dotted name, None for a name that may not be looked up, `_ABSENT` for a
    name that is not there.

    Modules are read as dicts: `torch.ops` creates every attribute that it is asked for, and reading
    `torch.onnx` imports it.
    """
    found = root
    for part in dotted.split("."):
        if type(found) is ModuleType:
            found = vars(found).get(part, _ABSENT)
        else:
            found = getattr(found, part, _ABSENT)
        if found is _ABSENT:
            return _ABSENT
        if isinstance(found, ModuleType) and type(found) is not ModuleType:
            return None
    return found


def _is_allowed(name: ApiName, function: Callable[..., Any]) -> bool:
    if name.api in _ALSO_ALLOWED[name.prefix]:
        return True
    if name.prefix == "Torch" and name.api.startswith(PRIVATE_BUT_CALLED):
        return True
    return function in _overridable() or _is_in_place_form(name)


def _is_in_place_form(name: ApiName) -> bool:
    """Return whether a function is `torch.relu_` or the like.

    torch lists the method `Tensor.relu_`, or `torch.relu`, and not the function that changes its
    argument.
    """
    if name.prefix == "Tensor" or not name.api.endswith("_") or name.api.endswith("__"):
        return False
    method = getattr(torch.Tensor, name.api, None)
    plain = _lookup(_ROOTS[name.prefix], name.api[:-1])
    return method in _overridable() or (callable(plain) and plain in _overridable())


@functools.cache
def _overridable() -> frozenset[Callable[..., Any]]:
    """Return every function of `torch.overrides.get_overridable_functions()`."""
    return frozenset(f for functions in get_overridable_functions().values() for f in functions)
