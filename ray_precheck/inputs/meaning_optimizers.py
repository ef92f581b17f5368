"""The meanings of the tensors in the record of an optimizer's update.

Comes in: an `ApiRecord` of `Optimizer.{class}` (its form: `frameworks.pytorch.optimizer_record`). Goes out:
the meanings of its tensors by path. Called by `inputs.meaning_table`.

A second moment is a mean of squares: never negative, and large where the first moment, or the gradient, is
large. Steps are counted as they were recorded; where the dump has no statistics they are those of step 10.
"""

from dataclasses import dataclass

from ray_precheck.inputs.meaning import Meaning, Within
from ray_precheck.inputs.meaning_values import Ranked
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import MappingSpec, SequenceSpec, TensorSpec, ValueSpec

PREFIX = "Optimizer"
_SQUARES = Within(0.0, float("inf"), (0.0, 1.0))
# Numbers that are used where the dump has no statistics.
_UNKNOWN = {
    "step": Within(0.0, float("inf"), (10.0, 10.0)),
    "lr": Within(0.0, 1.0, (1e-3, 1e-3), only_unknown=True),
    # Its square is at most the mean square.
    "grad_avg": Within(-float("inf"), float("inf"), (-0.1, 0.1), only_unknown=True),
    "grad_scale": Within(0.0, float("inf"), (1.0, 1.0)),
}
# What a second moment grows with: a state, or the gradients.
_GROWS_WITH = {
    "exp_avg_sq": "exp_avg",
    "max_exp_avg_sq": "exp_avg",
    "variance": "grads",
    "square_avg": "grad_avg",
}
_FACTORS = ("row_var", "col_var")


@dataclass(frozen=True, slots=True)
class SecondMoment(Ranked):
    """Means of squares beside what was squared."""

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range of numbers that are not negative."""
        return _SQUARES.bounded(spec)


def optimizer_meanings(record: ApiRecord) -> dict[str, Meaning]:
    """Return the meanings of an update's tensors by path."""
    found: dict[str, Meaning] = {}
    for position, group in enumerate(record.args):
        if isinstance(group, MappingSpec):
            found |= _of_group(dict(group.items), f"input_args.{position}")
    scale = dict(record.kwargs).get("grad_scale")
    if isinstance(scale, TensorSpec):
        found["input_kwargs.grad_scale"] = _UNKNOWN["grad_scale"]
    return found


def _of_group(group: dict[str, ValueSpec], path: str) -> dict[str, Meaning]:
    found: dict[str, Meaning] = {}
    if isinstance(group.get("lr"), TensorSpec):
        found[f"{path}.lr"] = _UNKNOWN["lr"]
    state = group.get("state")
    states = dict(state.items) if isinstance(state, MappingSpec) else {}
    squared = _tensors(group.get("grads"), f"{path}.grads")
    for name, values in states.items():
        source = _GROWS_WITH.get(name)
        beside = squared
        if source in states:
            beside = _tensors(states[source], f"{path}.state.{source}")
        for place, (own, spec) in _tensors(values, f"{path}.state.{name}").items():
            meaning = _meaning(name, spec, beside.get(place))
            if meaning is not None:
                found[own] = meaning
    return found


def _meaning(name: str, spec: TensorSpec, squared: tuple[str, TensorSpec] | None) -> Meaning | None:
    if name in _UNKNOWN:
        return _UNKNOWN[name]
    if name in _FACTORS:
        return _SQUARES
    if name not in _GROWS_WITH or DTYPES[spec.dtype].kind != "float":
        return None
    if squared is None or squared[1].shape != spec.shape:
        return _SQUARES
    path, beside = squared
    return SecondMoment(path, beside) if DTYPES[beside.dtype].kind == "float" else _SQUARES


def _tensors(values: ValueSpec | None, path: str) -> dict[int, tuple[str, TensorSpec]]:
    """Return path and spec of the tensors of a list, by their place in it."""
    items = values.items if isinstance(values, SequenceSpec) else ()
    return {
        place: (f"{path}.{place}", spec)
        for place, spec in enumerate(items)
        if isinstance(spec, TensorSpec)
    }
