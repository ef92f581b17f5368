"""Float64 arithmetic that rounds as a function does whose steps autocast sees on an accelerator.

Comes in: a half type. Goes out: a context in which the steps of a function are rounded to it, but for those
that autocast has in float32. Called by `check.bench`, for the functions of
`operators.effects`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ray_precheck import private_parts
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import map_leaves
from ray_precheck.operators.effects import IN_FLOAT32

_DISPATCH_MODE: Any = private_parts.find(private_parts.DISPATCH_MODE)


@contextmanager
def autocast_steps(dtype: str) -> Iterator[None]:
    """Round the steps of a function of half tensors as autocast on an accelerator does: to `dtype`, but for
    the operators that it has in float32 and what is made of their results.

    Raises:
        NotCheckable: see `rounded_arithmetic`.
    """
    if _DISPATCH_MODE is None:
        raise NotCheckable(f"torch {torch.__version__} lets nobody see the steps of a call")
    with _AutocastSteps(dtype):
        yield


class _AutocastSteps(_DISPATCH_MODE or object):  # type: ignore[misc]
    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = getattr(torch, dtype)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given: list[Any] = []
        map_leaves(args, given.append)
        is_wide = func.overloadpacket.__name__ in IN_FLOAT32 or any(
            hasattr(each, "in_float32") for each in given
        )
        result = func(*args, **(kwargs or {}))

        def stepped(value: Any) -> Any:
            if not torch.is_tensor(value) or value.dtype is not torch.float64:
                return value
            if is_wide:
                value.in_float32 = True  # type: ignore[attr-defined]
            elif not func.is_view:
                return value.to(self._dtype).to(value.dtype)
            return value

        return map_leaves(result, stepped)
