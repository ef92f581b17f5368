"""The tensors in nested values.

Comes in: any Python value. Goes out: the tensors in it. Called for each call, with what it gets and gives.
"""

from collections.abc import Iterable
from typing import Any

import torch

_DEEPEST = 10


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value in the order in which they are written."""
    found: list[torch.Tensor] = []
    _collect((value,), found, 0)
    return found


def _collect(values: Iterable[Any], found: list[torch.Tensor], depth: int) -> None:
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif depth > _DEEPEST:
            continue
        elif isinstance(each, tuple | list):
            _collect(each, found, depth + 1)
        elif isinstance(each, dict):
            _collect(each.values(), found, depth + 1)
