"""Faults outside of operators: a wrong weight, another mask, swapped samples, another epsilon.

Comes in: a model. Goes out: steps that differ from the honest one by such a fault, and the words that a
finding must have one of. Called by `making`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from scripts.capture_parity.models import Batch
from scripts.locate_faults.cases import DATA, EPSILON, MASK, WEIGHT
from scripts.locate_faults.planting.runs import Bench, TrainedStep

_OTHER_RANDOM_STATE = 71
_OTHER_EPSILON = 1e-5


class OtherSetup(NamedTuple):
    """A step with a fault outside of operators; `words` has words of which a finding has one."""

    family: str
    fault: str
    step: TrainedStep
    words: tuple[str, ...]


def setups_of(bench: Bench, honest: TrainedStep, dropped: bool) -> Iterator[OtherSetup]:
    """Yield the faults that a model can have; `dropped` says whether it draws random numbers."""
    name, size = _a_matrix(bench.trained.module)

    def swap_rows(model: torch.nn.Module) -> None:
        weight = model.get_parameter(name)
        weight.data[[0, size // 2]] = weight.data[[size // 2, 0]]

    def swap_samples(batch: Batch) -> Batch:
        return tuple(each.roll(1, dims=0) for each in batch)

    def change_epsilon(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["eps"] = _OTHER_EPSILON

    yield OtherSetup(WEIGHT, "two rows swapped", replace(honest, model=swap_rows), (name,))
    if dropped:
        other = replace(honest, random_state=_OTHER_RANDOM_STATE)
        yield OtherSetup(MASK, "another seed", other, ("mask", "random", "seed"))
    yield OtherSetup(
        DATA, "samples swapped", replace(honest, batch=swap_samples), ("input", "data", "batch")
    )
    if "eps" in bench.optimizer.defaults:
        step = replace(honest, optimizer=change_epsilon)
        yield OtherSetup(EPSILON, "1e-5", step, ("eps", "config", "hyperparameter"))


def _a_matrix(module: torch.nn.Module) -> tuple[str, int]:
    """Return the name and the rows of the matrix in the middle of a model's parameters."""
    found = [(name, len(each)) for name, each in module.named_parameters() if each.dim() > 1]
    return found[len(found) // 2]
