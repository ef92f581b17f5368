"""The memory layout of a tensor, as our captures record it.

Comes in: an element of a record. Goes out: its strides, its offset, and the argument whose memory it shares.
Called by `dump.decode`. msprobe records none of it.
"""

from collections.abc import Iterable
from typing import Any

from ray_precheck.dump.shown import shown
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import TensorSpec

_LARGEST = 2**63 - 1


def layout_of(
    value: dict[str, Any], shape: tuple[int, ...], path: str
) -> tuple[tuple[int, ...] | None, int, str]:
    """Return the strides (None: those of a contiguous tensor), the offset and the path of an argument
    whose memory a tensor shares ("" for none).

    Raises:
        NotCheckable: they are not those of a tensor of this shape.
    """
    stride, offset, shares = value.get("stride"), value.get("offset"), value.get("shares")
    if stride is not None:
        whole = isinstance(stride, list) and all(_is_count(step) for step in stride)
        if not whole or len(stride) != len(shape):
            raise NotCheckable(
                f"{path}: stride {shown(stride)} is not a list of {len(shape)} steps of 0 or more"
            )
        stride = tuple(stride)
    if offset is not None and not _is_count(offset):
        raise NotCheckable(f"{path}: offset {shown(offset)} is not a count of elements")
    if shares is not None and not isinstance(shares, str):
        raise NotCheckable(f"{path}: shares {shown(shares)} is not the path of an argument")
    return stride, offset or 0, shares or ""


def lazy_of(value: dict[str, Any], path: str) -> str:
    """Return what was still to be done to a tensor's memory: "conj", "neg" or "".

    Raises:
        NotCheckable: it is something else.
    """
    lazy = value.get("lazy", "")
    if lazy not in ("", "conj", "neg"):
        raise NotCheckable(f"{path}: lazy {shown(lazy)} is neither conj nor neg")
    return str(lazy)


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST


def require_earlier(tensors: Iterable[tuple[str, TensorSpec]]) -> None:
    """Require that each tensor of a call shares the memory of one before it, if it shares any.

    Raises:
        NotCheckable: it names another path.
    """
    earlier: set[str] = set()
    for path, spec in tensors:
        if spec.shares and spec.shares not in earlier:
            raise NotCheckable(
                f"forward {path}: shares {shown(spec.shares)} names no tensor before it"
            )
        earlier.add(path)
