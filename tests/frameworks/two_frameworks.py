"""A step of one small network with the same weights, captured in PyTorch and in MindSpore.

Goes out: the folder of a capture. Used by `test_compare_frameworks`. Each side is written as its users
write it: with functions of the framework's own names, arguments and order of arguments.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.capture import Capture

_RNG = np.random.default_rng(11)
_WIDTH = 16


def _made(*shape: int, scale: float = 0.3) -> Any:
    return (_RNG.standard_normal(shape) * scale).astype(np.float32)


GIVEN = _made(4, 6, _WIDTH, scale=1.0)
WEIGHTS = {
    "query": _made(_WIDTH, _WIDTH), "key": _made(_WIDTH, _WIDTH), "value": _made(_WIDTH, _WIDTH),
    "up": _made(4 * _WIDTH, _WIDTH), "up_bias": _made(4 * _WIDTH), "down": _made(_WIDTH, 4 * _WIDTH),
    "gain": 1 + _made(_WIDTH, scale=0.1),
}  # fmt: skip


def captured_torch(folder: Path, task: str) -> Path:
    """Capture the step in PyTorch."""
    import torch
    from torch.nn import functional

    weights = {name: torch.tensor(each, requires_grad=True) for name, each in WEIGHTS.items()}

    def network(given: Any) -> Any:
        query, key, value = (
            functional.linear(given, weights[n]) for n in ("query", "key", "value")
        )
        scores = torch.matmul(query, torch.transpose(key, 1, 2)) * _WIDTH**-0.5
        mixed = torch.add(given, torch.matmul(functional.softmax(scores, dim=-1), value))
        variance = torch.mean(torch.square(mixed), dim=-1, keepdim=True)
        normed = mixed * torch.rsqrt(variance + 1e-6) * weights["gain"]
        hidden = functional.relu(functional.linear(normed, weights["up"], weights["up_bias"]))
        down = functional.linear(hidden, weights["down"])
        return torch.mean(torch.square(torch.add(mixed, down)))

    with Capture(folder, step_by="manual", framework="pytorch", task=task):
        network(torch.tensor(GIVEN)).backward()
    return folder


def captured_mindspore(folder: Path, task: str, gain: float = 1.0) -> Path:
    """Capture the same step in MindSpore; `gain` scales one of the weights."""
    with warnings.catch_warnings():
        # MindSpore's import may warn of what the machine lacks (CANN); that is none of ours.
        warnings.simplefilter("ignore")
        import mindspore as ms
        from mindspore import Parameter, Tensor, mint

    chosen = WEIGHTS | {"gain": WEIGHTS["gain"] * np.float32(gain)}
    weights = {name: Parameter(Tensor(each), name=name) for name, each in chosen.items()}

    def network(given: Any) -> Any:
        query = mint.nn.functional.linear(given, weights["query"])
        key = mint.nn.functional.linear(given, weights["key"])
        value = mint.nn.functional.linear(given, weights["value"])
        scores = mint.matmul(query, mint.transpose(key, 1, 2)) * _WIDTH**-0.5
        mixed = mint.add(given, mint.matmul(mint.nn.functional.softmax(scores, dim=-1), value))
        variance = mint.mean(mint.square(mixed), dim=-1, keepdim=True)
        normed = mixed * mint.rsqrt(variance + 1e-6) * weights["gain"]
        hidden = mint.nn.functional.relu(
            mint.nn.functional.linear(normed, weights["up"], weights["up_bias"])
        )
        down = mint.nn.functional.linear(hidden, weights["down"])
        return mint.mean(mint.square(mint.add(mixed, down)))

    with Capture(folder, step_by="manual", framework="mindspore", task=task):
        ms.value_and_grad(network, None, list(weights.values()))(Tensor(GIVEN))
    return folder
