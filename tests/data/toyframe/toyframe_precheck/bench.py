"""Which of torch's operators are the bench of toyframe's."""

from collections.abc import Callable
from typing import Any

import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.pytorch.signatures import mapped, rows
from ray_precheck.schema.record import ApiName


def softcap(tensor: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.tanh(tensor / cap) * cap


ROWS = {
    "Toy.add": rows("Torch.add", "left>input right>other"),
    "Toy.subtract_from": rows("Torch.rsub", "less>input more>other"),
    "Toy.mul": rows("Torch.mul", "left>input right>other"),
    "Toy.exp": rows("Torch.exp", "tensor>input"),
    "Toy.cast": rows("Tensor.to", "tensor>self dtype"),
    "Toy.crash": rows("Torch.abs", "tensor>input"),
    "Toy.softcap": rows(softcap, "tensor cap"),
}


def resolve(name: ApiName) -> Callable[..., Any]:
    """Return the bench of an API."""
    if name.type_name not in ROWS:
        raise NotCheckable(f"{name.type_name} has no bench: toyframe maps it to nothing of torch's")
    return mapped(name.type_name, ROWS[name.type_name])
