"""The state from which a step of MindSpore starts, so that it can run again from there.

Comes in: Cells and optimizers. Goes out: their state with that of the random generators, and all of it
back in its place. Called by `steps` around each run of a step.

A kernel that belongs to one Cell (that of `nn.Dropout`) keeps a random state that nobody can read or write,
and without `mindspore.set_seed` so does each: a step that draws from one does not repeat itself, which its
verification says.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.tensors import values_on_host
from ray_precheck.capture.verifying.step import Restore, other_random_states


def saved_mindspore_state(
    models: Sequence[nn.Cell], optimizers: Sequence[nn.Cell]
) -> list[Restore]:
    """Return what puts the state back as it is now; it may be called several times.

    It is of parameters and buffers, the mode of Cells (training or not), the optimizers' states and
    hyperparameters, and the random generators of MindSpore, numpy and Python.
    """
    cells = [*models, *optimizers]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return [
        *(_tensor(each) for each in _tensors(cells, groups)),
        *(
            partial(setattr, cell, "training", cell.training)
            for top in cells
            for _, cell in top.cells_and_names()
        ),
        *(_group(group) for group in groups),
        *_random_states(),
        *other_random_states(),
    ]


def _random_states() -> Iterator[Restore]:
    """Yield what puts back the generator and the seeds that the next kernels get."""
    state = ms.get_rng_state()
    yield lambda: ms.set_rng_state(state)
    seeds: dict[Any, int] | None = private_parts.find(private_parts.MINDSPORE_SEEDS)
    if seeds is not None:
        kept = dict(seeds)

        def restore() -> None:
            seeds.clear()
            seeds.update(kept)

        yield restore


def _tensors(cells: Iterable[nn.Cell], groups: Iterable[dict[str, Any]]) -> Iterable[ms.Tensor]:
    """Return the tensors of Cells and of the groups of optimizers, each once."""
    buffers = getattr(nn.Cell, "buffers", lambda _: ())  # MindSpore 2.7 has none
    found: dict[int, ms.Tensor] = {}
    for each in (
        *(tensor for cell in cells for tensor in (*cell.get_parameters(), *buffers(cell))),
        *(value for group in groups for value in group.values()),
    ):
        if isinstance(each, ms.Tensor):
            found.setdefault(id(each), each)
    return found.values()


def _tensor(tensor: ms.Tensor) -> Restore:
    """Save the values of a tensor, which are written into it again."""
    found = values_on_host(tensor)
    values = None if found is None else found.copy()

    def restore() -> None:
        if values is not None:
            # Into the tensor's own memory: with `set_data` it gets other memory, and an optimizer that was
            # compiled goes on with what it had. MindSpore's tensor may have the memory of the array.
            ops.assign(tensor, ms.Tensor(values.copy(), dtype=tensor.dtype))

    return restore


def _group(group: dict[str, Any]) -> Restore:
    """Save the hyperparameters of a group; those that are tensors are saved as such."""
    plain = {
        name: copy.deepcopy(value)
        for name, value in group.items()
        if name != "params" and not isinstance(value, ms.Tensor)
    }

    def restore() -> None:
        group.update(copy.deepcopy(plain))

    return restore
