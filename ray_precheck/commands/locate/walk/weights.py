"""Which values are weights: what the run was given to train, not what an operator made.

Comes in: the records of a capture. Goes out: whether a value that no record gave is a weight. Called by
`walk`. A dump tells by the names or types of some tensors, and by the update of an optimizer that has the
same values; else the argument tells for which an operator has weights.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ray_precheck.trace.flow.flow import FlowRecord
from ray_precheck.trace.items import INPUT, PARAMETERS, Item

_OPTIMIZER = "Optimizer."
_PARAMS = ".params."
# The positional arguments that are weights and running statistics, in torch's signatures, which those of
# mindspore.mint follow, by the name of the operator.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "linear": ("1", "2"),
    "embedding": ("1",),
    "embedding_bag": ("1",),
    "conv1d": ("1", "2"),
    "conv2d": ("1", "2"),
    "conv3d": ("1", "2"),
    "conv_transpose1d": ("1", "2"),
    "conv_transpose2d": ("1", "2"),
    "conv_transpose3d": ("1", "2"),
    "bilinear": ("2", "3"),
    "layer_norm": ("2", "3"),
    "group_norm": ("2", "3"),
    "rms_norm": ("2",),
    "batch_norm": ("1", "2", "3", "4"),
    "instance_norm": ("1", "2", "3", "4"),
    "prelu": ("1",),
}
_KEYWORDS = ("weight", "bias", "running_mean", "running_var", "gamma", "beta")


class Weights:
    """The weights of a run."""

    def __init__(self) -> None:
        self._updated: set[tuple[Any, ...]] = set()

    def learn(self, records: Iterable[FlowRecord]) -> None:
        """Take note of what optimizers update."""
        for record in records:
            if record.entry.key.startswith(_OPTIMIZER):
                self._updated |= {item.mark for item in record.inputs if _PARAMS in item.path}

    def holds(self, record: FlowRecord, item: Item) -> bool:
        """Return whether a value that a record gets is a weight."""
        if item.part == PARAMETERS or item.type_name.endswith("Parameter"):
            return True
        if item.state_name or item.mark in self._updated:
            return True
        if item.part != INPUT:
            return False
        name = record.entry.call.rpartition(".")[0].rpartition(".")[2]
        last = item.path.removeprefix(f"{INPUT}.")
        return last in _KEYWORDS or last in _ARGUMENTS.get(name, ())
