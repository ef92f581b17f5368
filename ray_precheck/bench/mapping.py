"""Which torch callable is the reference of a MindSpore API.

Comes in: an `ApiName` of a MindSpore dump. Goes out: a callable that takes MindSpore's arguments.
Called by the bench. `mindspore.mint` was made after torch, so the rule is the namesake; what
differs has a row in a table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ray_precheck.backends.torch_names import resolve_torch
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.record import ApiName

_NAMESAKE_PREFIXES = {
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional", "Torch"),
    "Tensor": ("Tensor", "Torch"),
    "Functional": ("Torch", "Functional"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A reference: a torch name (`Tensor.permute`) or a function, and keywords to rename."""

    target: str | Callable[..., Any]
    rename: dict[str, str] = field(default_factory=dict)


def _astype(tensor: torch.Tensor, dtype: Any, copy: bool = True) -> torch.Tensor:
    return tensor.to(dtype)


ROWS: dict[str, Row] = {
    "Tensor.astype": Row(_astype),
    "Tensor.expand_dims": Row("Tensor.unsqueeze", {"axis": "dim"}),
    "Tensor.swapaxes": Row("Tensor.swapaxes", {"axis1": "axis0", "axis2": "axis1"}),
}


def resolve_mindspore(name: ApiName) -> Callable[..., Any]:
    """Return the reference of a MindSpore API.

    Raises:
        NotCheckable: neither a row nor a namesake in torch.
    """
    row = ROWS.get(name.type_name)
    if row is not None:
        return _from_row(row)
    for prefix in _NAMESAKE_PREFIXES.get(name.prefix, ()):
        try:
            return resolve_torch(ApiName(prefix, name.api, name.number))
        except NotCheckable:
            continue
    raise NotCheckable(
        f"{name.type_name} has no bench: torch has no such operator, the table no row"
    )


def _from_row(row: Row) -> Callable[..., Any]:
    target = row.target
    if isinstance(target, str):
        prefix, _, api = target.partition(".")
        target = resolve_torch(ApiName(prefix, api, 0))
    function, rename = target, row.rename
    if not rename:
        return function

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{rename.get(key, key): value for key, value in kwargs.items()})

    return renamed
