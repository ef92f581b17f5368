"""Why two captures of the same step differ at a place, where that is known.

Comes in: a difference, and the two dumps that it is of. Goes out: the reason, or None. Each reason is told by
the records themselves, so that another difference at the same place has none. Called by the main module.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from scripts.capture_parity.records import STATISTICS, RecordDifference, Records, element_at

SUM_ORDER = "msprobe's own nodes change the order of sums"
NO_DTYPE = "a dtype or device by position: msprobe writes an empty object"
_SUM_ROUNDING = 1e-5
# Calls that may give their input as it is, and those that are several nodes of autograd's graph.
_MAY_GIVE_BACK = frozenset(("Tensor.to", "Tensor.float", "Functional.dropout"))
_SEVERAL_NODES = frozenset(
    (
        "Functional.linear",
        "Functional.cross_entropy",
        "Functional.scaled_dot_product_attention",
        "Functional.adaptive_avg_pool2d",
        "Torch.matmul",
        "Tensor.matmul",
    )
)
_IN_PLACE_OPERATORS = ("__iadd__", "__imul__", "__isub__", "__itruediv__")


class Dumps:
    """Two dumps of the same step, and how they were made."""

    def __init__(self, theirs: Records, ours: Records, level: str, gradients: str) -> None:
        self.theirs = theirs
        self.ours = ours
        self.level = level
        self.gradients = gradients

    @cached_property
    def their_names(self) -> frozenset[str]:
        """The names of functions and modules of which msprobe has a record."""
        return frozenset(name_of(key) for key in self.theirs)

    @cached_property
    def without_values(self) -> frozenset[Any]:
        """What our statistics say of memory that was just made, and holds anything."""
        return frozenset(
            _said(element)
            for key, record in self.ours.items()
            if "empty" in key.split(".")[1]
            for element in record.get("output", ())
        )

    @cached_property
    def changed(self) -> frozenset[Any]:
        """What our statistics say of each value that a call changes in place."""
        return frozenset(
            _said(record["input_args"][0])
            for key, record in self.ours.items()
            if record.get("input_args") and _changes_in_place(key, record)
        )

    def forward_of(self, key: str) -> Any:
        """Return our record of the call whose gradients a record has."""
        return self.ours.get(forward_key(key), {})

    def gives_back(self, key: str) -> bool:
        """Return whether a call gave its input as it is: then it has no node of its own."""
        if name_of(key) not in _MAY_GIVE_BACK:
            return False
        record = self.forward_of(key)
        given = next(_tensors(record.get("input_args", [])), None)
        output = next(_tensors(record.get("output", [])), None)
        if given is None or output is None or given["shape"] != output["shape"]:
            return False
        return bool(_said(given) == _said(output))

    def is_incomparable(self, key: str, path: str) -> bool:
        """Return whether a reason says of a place that both have something else there.

        A call without a node of its own has the gradients of another call, and msprobe's own nodes make
        it that of a third one. Of a call of several nodes msprobe has the gradients of the last one.
        """
        if not _is_backward(key):
            return False
        if self.gradients == "border":
            return path.startswith("output") and name_of(key) in _SEVERAL_NODES
        return self.level != "L1" and self.gives_back(key)

    def is_like_its_inputs(self, key: str) -> bool:
        """Return whether each of our gradients has the shape and the dtype of the input that it is of."""
        forward, backward = self.forward_of(key), self.ours[key]
        inputs = [*_tensors(forward.get("input_args", [])), *_tensors(forward["input_kwargs"])]
        gradients, places = backward.get("output", []), backward.get("gradient_of", [])
        if len(gradients) != len(places):
            return False
        return all(
            gradient is None or (place is not None and _is_alike(gradient, inputs[int(place)]))
            for gradient, place in zip(gradients, places, strict=True)
        )


def _is_alike(gradient: Any, tensor: Any) -> bool:
    return all(gradient[field] == tensor[field] for field in ("dtype", "shape"))


def name_of(key: str) -> str:
    """Return the name of the function or module of a key, without numbers of calls and the direction."""
    kept = [part for part in key.split(".") if not part.isdecimal()]
    return ".".join(part for part in kept if part not in ("forward", "backward"))


def forward_key(key: str) -> str:
    """Return the key of the forward record that belongs to a record of gradients."""
    if key.startswith("Module."):
        return key.replace(".backward.", ".forward.").replace(".parameters_grad.", ".forward.")
    return key.removesuffix(".backward") + ".forward" if key.endswith(".backward") else key


def _is_backward(key: str) -> bool:
    return key.endswith(".backward") or ".backward." in key or ".parameters_grad." in key


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and "shape" in value:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _said(element: Any) -> Any:
    if not isinstance(element, dict):
        return None
    shape = math.prod(element.get("shape", ()))
    return (element.get("dtype"), shape, *(repr(element.get(field)) for field in ("Max", "Min")))


def _changes_in_place(key: str, record: Any) -> bool:
    name = key.split(".")[-3] if key.endswith(".forward") else ""
    flag = record.get("input_kwargs", {}).get("inplace") or {}
    by_name = name.endswith("_") and not name.endswith("__")
    return by_name or name in _IN_PLACE_OPERATORS or bool(flag.get("value"))


def _is_not_recorded_by_msprobe(found: RecordDifference, dumps: Dumps) -> bool:
    return found.kind == "extra" and name_of(found.key) not in dumps.their_names


def _is_lost_around_a_change(found: RecordDifference, dumps: Dumps) -> bool:
    record = dumps.forward_of(found.key)
    touched = [*_tensors(record.get("input_args", [])), *_tensors(record.get("output", []))]
    is_extra = found.kind == "extra" and _is_backward(found.key)
    return (
        is_extra
        and dumps.level != "L1"
        and any(_said(element) in dumps.changed for element in touched)
    )


def _is_masked_by_a_change(found: RecordDifference, dumps: Dumps) -> bool:
    record = dumps.forward_of(found.key)
    own = _is_backward(found.key) and _changes_in_place(forward_key(found.key), record)
    if not own or dumps.level == "L1" or found.kind not in STATISTICS:
        return False
    theirs, ours = dumps.theirs[found.key], element_at(dumps.ours[found.key], ("output", "0"))
    arriving = element_at(theirs, ("input", "0"))
    if not found.path.startswith("output.0.") or _said(theirs["output"][0]) != _said(arriving):
        return False
    # What the change has set to zero is no longer there.
    within = arriving["Min"] <= ours["Min"] and ours["Max"] <= arriving["Max"]
    return bool(within and ours["Norm"] <= arriving["Norm"] * (1 + _SUM_ROUNDING))


def _gives_its_input_back(found: RecordDifference, dumps: Dumps) -> bool:
    if not _is_backward(found.key) or not dumps.gives_back(found.key):
        return False
    if found.kind in ("missing", "extra"):
        is_node = dumps.gradients == "node"
        return found.kind == ("extra" if is_node else "missing")
    return dumps.is_incomparable(found.key, found.path)


def _overflows(found: RecordDifference, _: Dumps) -> bool:
    if found.kind not in ("Mean", "Norm") or not isinstance(found.theirs, float):
        return False
    return math.isinf(found.theirs) and isinstance(found.ours, float) and abs(found.ours) > 1e30


def _is_a_dtype_by_position(found: RecordDifference, dumps: Dumps) -> bool:
    place = found.path.split(".")
    theirs = element_at(dumps.theirs[found.key], place[:2]) if found.kind == "more" else None
    ours = element_at(dumps.ours[found.key], place[:2]) if theirs == {} else None
    return isinstance(ours, dict) and str(ours.get("type", "")).startswith("torch.")


def _has_no_values_yet(found: RecordDifference, dumps: Dumps) -> bool:
    element = element_at(dumps.ours.get(found.key), found.path.split(".")[:-1])
    return found.kind in STATISTICS and _said(element) in dumps.without_values


def _is_an_output_of_what_returns_nothing(found: RecordDifference, _: Dumps) -> bool:
    is_set = ".__setitem__." in found.key and found.path == "output.0"
    return is_set and found.theirs is None


def _came_by_keyword(found: RecordDifference, dumps: Dumps) -> bool:
    if found.kind != "length" or found.path != "output" or ".backward." not in found.key:
        return False
    named = _tensors(dumps.forward_of(found.key).get("input_kwargs", {}))
    return len(found.theirs) < len(found.ours) and any(each.get("requires_grad") for each in named)


def _is_an_output_without_gradient(found: RecordDifference, _: Dumps) -> bool:
    is_arriving = found.key.startswith("Module.") and ".backward." in found.key
    if not is_arriving or found.kind != "length" or found.path != "input":
        return False
    longer, shorter = sorted((found.theirs, found.ours), key=len, reverse=True)
    return all(element is None for element in longer[len(shorter) :])


def _is_used_inside(found: RecordDifference, dumps: Dumps) -> bool:
    if not (found.key.startswith("Module.") and found.path.startswith("input.")):
        return False
    outputs = dumps.forward_of(found.key).get("output", [])
    if ".backward." not in found.key or len(list(_tensors(outputs))) < 2:
        return False
    place = found.path.split(".")[:2]
    theirs, ours = (element_at(each[found.key], place) for each in (dumps.theirs, dumps.ours))
    output = element_at(outputs, place[1:])
    if theirs is None:  # nothing but the module uses it
        return isinstance(ours, dict) and _is_alike(ours, output)
    both = isinstance(ours, dict) and _is_alike(ours, theirs)
    # It is the gradient of other users, too, so that nothing of it is the same.
    return both and all(ours[field] != theirs[field] for field in ("Max", "Min", "Norm"))


def _is_a_border(found: RecordDifference, dumps: Dumps) -> bool:
    is_border = dumps.gradients == "border" and dumps.is_incomparable(found.key, found.path)
    return is_border and dumps.is_like_its_inputs(found.key)


def _sums_in_another_order(found: RecordDifference, dumps: Dumps) -> bool:
    if found.kind not in STATISTICS or not _is_backward(found.key):
        return False
    element = element_at(dumps.theirs[found.key], found.path.split(".")[:-1])
    ends = [abs(element[end]) for end in ("Max", "Min") if isinstance(element[end], float)]
    values = (found.theirs, found.ours)
    if dumps.level == "L1" or not ends or not all(isinstance(each, float) for each in values):
        return False
    return bool(abs(found.theirs - found.ours) <= _SUM_ROUNDING * max(*ends, abs(found.theirs)))


# The first that fits counts.
REASONS: dict[str, Callable[[RecordDifference, Dumps], bool]] = {
    "msprobe does not record the function": _is_not_recorded_by_msprobe,
    "msprobe sums in float32, which overflows": _overflows,
    NO_DTYPE: _is_a_dtype_by_position,
    "memory that holds anything yet": _has_no_values_yet,
    "a call that returns nothing: msprobe has no output": _is_an_output_of_what_returns_nothing,
    SUM_ORDER: _sums_in_another_order,
    "a call that gives its input back has no node of its own": _gives_its_input_back,
    "a change in place: msprobe loses the gradients of what is changed": _is_lost_around_a_change,
    "a change in place: msprobe has the gradient that arrives": _is_masked_by_a_change,
    "inputs by keyword: msprobe has no gradients of them": _came_by_keyword,
    "an output without a gradient: here it is null": _is_an_output_without_gradient,
    "an output that the module uses, too: here its whole gradient": _is_used_inside,
    "the gradients at the operator's border; msprobe has those of its last node": _is_a_border,
}


def reason_of(found: RecordDifference, dumps: Dumps) -> str | None:
    """Return the reason of a difference, None where none is known."""
    for reason, fits in REASONS.items():
        if fits(found, dumps):
            return reason
    return None
