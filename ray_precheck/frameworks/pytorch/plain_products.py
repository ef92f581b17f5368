"""Products of matrices as plain loops, in the place of the BLAS of torch (MKL, and oneDNN for half types).

Called by the switch `products`. torch has no switch that turns its BLAS off. NumPy's einsum multiplies and
adds in a loop of its own, in the dtype of the tensors; half types are widened to float32 and the result is
rounded once, as kernels do.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.schema.dtypes import Array

_ATEN = torch.ops.aten
_DISPATCH_MODE: Any = private_parts.find(private_parts.DISPATCH_MODE)
# Larger products are made by NumPy's BLAS, which is another one than torch's in NumPy's own wheels: a core
# makes 6e9 multiplications a second in einsum's loop.
_MOST_MULTIPLICATIONS = 1 << 34
_HALVES = (torch.float16, torch.bfloat16)
_open: list[Any] = []


def are_plain() -> bool:
    """Return whether products are plain loops now."""
    return bool(_open)


def make_plain(value: bool) -> None:
    """Make products plain loops, or end that; the calls are nested as brackets are."""
    if value:
        mode = _PlainProducts()
        mode.__enter__()
        _open.append(mode)
    else:
        _open.pop().__exit__(None, None, None)


def can_be_plain() -> bool:
    """Return whether this torch lets the package see every product."""
    return _DISPATCH_MODE is not None


class _PlainProducts(_DISPATCH_MODE or object):  # type: ignore[misc]
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(func)
        tensors = [each for each in args if torch.is_tensor(each)]
        if product is None or any(not _is_plain(each) for each in tensors):
            return func(*args, **kwargs)
        return product(*args, **kwargs)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _loop(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return `(..., m, k) @ (..., k, n)`, widened."""
    one, other = _array(left), _array(right)
    count = math.prod(left.shape) * right.shape[-1]
    with np.errstate(all="ignore"):
        return torch.from_numpy(_product(one, other, is_small=count <= _MOST_MULTIPLICATIONS))


def _array(tensor: torch.Tensor) -> Array:
    return np.asarray(_wide(tensor).detach().resolve_conj().resolve_neg().numpy())


def _product(one: Array, other: Array, *, is_small: bool) -> Array:
    if not is_small:
        return np.asarray(np.matmul(one, other))
    # Both have k last, so that the loop runs along memory.
    rows, columns = np.ascontiguousarray(one), np.ascontiguousarray(other.swapaxes(-1, -2))
    return np.asarray(np.einsum("...ik,...jk->...ij", rows, columns, optimize=False))


def _mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _loop(left, right).to(left.dtype)


def _mv(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _mm(left, right[:, None])[:, 0]


def _dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _mm(left[None, :], right[:, None])[0, 0]


def _added(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return `beta * added + alpha * product`, rounded once."""

    def function(
        added: torch.Tensor, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1
    ) -> torch.Tensor:
        made = product(_wide(left), _wide(right)) * alpha
        # With beta = 0 NaN in what is added does not count.
        whole: torch.Tensor = made if beta == 0 else made + _wide(added) * beta
        return whole.to(added.dtype)

    return function


_PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.mv.default: _mv,
    _ATEN.dot.default: _dot,
    _ATEN.addmm.default: _added(_mm),
    _ATEN.baddbmm.default: _added(_mm),
    _ATEN.addmv.default: _added(_mv),
}
