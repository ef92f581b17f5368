"""The norms of many tensors in one pass, and the modules to which they are counted.

Comes in: gradients and parameters as an optimizer has them: sparse, distributed, complex, of any dtype. Goes
out: a norm without dimensions for each, where the tensor lies. Called by `measuring`, once a step.
"""

import operator
from collections.abc import Sequence

import torch

from ray_precheck import private_parts

# A row has at most so many modules: beyond, 10^6 rows would be larger than 500 MB.
MOST_GROUPS = 16
_REAL = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_KIND = operator.attrgetter("__class__", "layout", "device", "dtype")
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
_SCALAR = private_parts.find(private_parts.FOREACH_NORM_SCALAR)
# torch 2.3 and before lack it.
_HAS_DTYPE = _SCALAR is not None and any(
    argument.name == "dtype" for argument in _SCALAR._schema.arguments
)


def is_late(tensor: torch.Tensor) -> bool:
    """Return whether to read a tensor is to wait for a device."""
    return not tensor.is_cpu


def mean_of(tensor: torch.Tensor) -> float | torch.Tensor:
    """Return the mean of a tensor; a copy on its device, where to read it is to wait."""
    if tensor.numel() == 1 and not is_late(tensor):
        return float(tensor.item())
    mean = readable(tensor.detach()).mean(dtype=torch.float32)
    return mean if is_late(mean) else mean.item()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor as a dense, real one; of a distributed tensor those of this rank."""
    if _is_plain(tensor):
        return tensor
    to_local = getattr(tensor, "to_local", None)
    if to_local is not None:
        tensor = to_local()
    if tensor.layout is not torch.strided:
        tensor = (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.dtype in _REAL else tensor.float()


def _is_plain(tensor: torch.Tensor) -> bool:
    is_torchs = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return is_torchs and tensor.dtype in _REAL


def norms_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the norm of each tensor, without dimensions, in one pass for each device; in float32 but for
    float64: the sum of squares of 65 float16 may be beyond float16."""
    kinds = {*map(_KIND, tensors)}
    if len(kinds) == 1:
        return _pass(tensors if _is_plain(tensors[0]) else [*map(readable, tensors)])
    norms = [*map(readable, tensors)]
    for kind in {*map(_KIND, norms)}:
        places = [place for place, each in enumerate(norms) if _KIND(each) == kind]
        for place, norm in zip(places, _pass([norms[place] for place in places]), strict=True):
            norms[place] = norm
    return norms


def _pass(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    dtype = tensors[0].dtype
    foreach = private_parts.find(private_parts.FOREACH_NORM)
    wide = {} if dtype in (torch.float32, torch.float64) else {"dtype": torch.float32}
    if foreach is None or (wide and not _HAS_DTYPE):
        return [torch.linalg.vector_norm(each, **wide) for each in tensors]
    found: list[torch.Tensor] = list(foreach(tensors, 2, **wide))
    return found


def together(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return norms as one vector, on the device of the first one."""
    if len({each.device for each in norms}) > 1:
        norms = [each.to(norms[0].device, non_blocking=True) for each in norms]
    return torch.stack(list(norms))


def module_groups(names: Sequence[str], most: int = MOST_GROUPS) -> dict[str, str]:
    """Return for each name of a parameter the module to which it is counted: at the greatest depth at which
    there are at most so many of them, at least one.

    Where a model has more modules than that at its first depth, neighbours are counted together:
    `layers.0..layers.3`. Parameters of the model itself are counted to `(model)`. What wraps a model (DDP,
    FSDP, torch.compile) is left out of the names.
    """
    paths = {
        name: [part for part in name.split(".")[:-1] if part not in _WRAPPERS] for name in names
    }
    if paths and all(path[:1] == ["module"] for path in paths.values()):  # DDP's name of it
        paths = {name: path[1:] for name, path in paths.items()}
    deepest = max(map(len, paths.values()), default=0)
    found = dict.fromkeys(names, "(model)")
    for depth in range(1, deepest + 1):
        deeper = {name: ".".join(path[:depth]) or "(model)" for name, path in paths.items()}
        kinds = list(dict.fromkeys(deeper.values()))
        if len(kinds) <= most:
            found = deeper
            continue
        if depth == 1:
            size = -(-len(kinds) // most)
            parts = [kinds[place : place + size] for place in range(0, len(kinds), size)]
            label = {each: f"{part[0]}..{part[-1]}" for part in parts for each in part}
            return {name: label[each] for name, each in deeper.items()}
        break
    return found
