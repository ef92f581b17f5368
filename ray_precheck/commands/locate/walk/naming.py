"""What things are called in messages: parameters, collectives with their groups, factors between two values.

Comes in: records of one run or of both. Goes out: words, "" for what has none. Called by `outside`, `calls`,
`estimate` and `exchanged`.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.trace.flow import Flow, FlowRecord, Meeting, is_collective, operation_of
from ray_precheck.trace.items import Item, bare_name, parameter_names, parameter_place
from ray_precheck.trace.terms import group_in_words, module_in_words

_OPTIMIZER = "Optimizer."
# What the lists in the record of an update hold, in words.
_LISTS = {
    "grads": "the gradient of ",
    "params": "the parameter ",
    "state": "the optimizer's state of ",
}
# So many parameters of a bucket or an update are named.
_NAMED = 3
# A gradient is scaled, cast and copied by so many calls at most between its reduction and its update.
_ON_THE_WAY = 6
_SCALES = frozenset(
    """div truediv itruediv mul imul rmul clone copy contiguous to float half bfloat16 type detach view
    view_as reshape flatten unflatten ravel getitem chunk split narrow squeeze unsqueeze
    foreach_div foreach_mul""".split()
)
# Max, Min, Mean and Norm tell of one factor where their ratios agree so well: those of half types are rounded
# once more. Below that share of the root mean square a statistic tells nothing of a ratio.
_SAME_FACTOR, _SAME_FACTOR_HALF, _TOO_SMALL = 1e-4, 2.0**-6, 1e-2
# A single element has always a factor: it counts as one where it is a small number or one over it.
_LARGEST_NUMBER = 64


def parameter_at(record: FlowRecord, path: str) -> str:
    """Return the name of the parameter that a value of an update is of, `input.0.grads.7`; "" for others."""
    if not record.entry.key.startswith(_OPTIMIZER):
        return ""
    place = parameter_place(Item(path, "", None))
    return parameter_names(record.items).get(place, "") if place is not None else ""


def value_in_words(record: FlowRecord, item: Item) -> str:
    """Return what a value is: `the gradient of n.weight (Optimizer.SGD.0.forward.input.0.grads.7)`, or its
    path alone."""
    path = f"{record.entry.key}.{item.path}"
    if item.bucket_name:
        return f"the gradient of {item.bucket_name} ({path})"
    name = parameter_at(record, item.path)
    if not name:
        return path
    return f"{_LISTS.get(item.path.split('.')[2], '')}{name} ({path})"


def listed_names(names: Sequence[str]) -> str:
    """Return names in a sentence: the first three, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


@dataclass(frozen=True)
class Exchanges:
    """The collectives of one run: its data flow, asked for where it is needed, its records by key, the
    meetings of its collectives, the module around a record, and a record as it stands in the dump."""

    flow: Callable[[], Flow] = Flow
    records: Mapping[str, FlowRecord] = field(default_factory=dict)
    meetings: Mapping[str, Meeting] = field(default_factory=dict)
    module_of: Callable[[str], str] = lambda key: ""
    raw: Callable[[str], Mapping[str, Any]] = lambda key: {}

    def in_words(self, key: str) -> str:
        """Return a collective: `Distributed.all_reduce.3 (group 0-1, in layers.0.o_proj)`; of other calls the
        name alone."""
        call = key.rpartition(".")[0]
        if not is_collective(call):
            return call
        names = self.parameters.get(key) or self._named(key, self._gradients)
        module = self._where(key) if len(names) < 2 else ""
        of = f"the gradient{'s' if len(names) > 1 else ''} of "
        if not names or "reduce" not in operation_of(call):
            names, of = names or self._named(key, self.updated), ""
        said = [
            group_in_words(self.meetings.get(key)),
            module,
            f"of {of}{listed_names(names)}" if names else "",
        ]
        words = ", ".join(filter(None, said))
        return f"{call} ({words})" if words else call

    def _where(self, key: str) -> str:
        """Return the module in which a call runs, or between which it does: a backward pass is in none."""
        module = module_in_words(self.module_of(key))
        if module:
            return f"in {module}"
        before = self._module_along(key, self._giver_of)
        after = self._module_along(key, self._readers.get)
        if before and after and before != after:
            return f"between {before} and {after}"
        return f"at {before or after}" if before or after else ""

    def _module_along(self, key: str, step: Callable[[str], str | None]) -> str:
        """Return the module of the next record on a way that is in one."""
        for _ in range(_ON_THE_WAY):
            found = step(key)
            if not found or found.startswith(_OPTIMIZER):
                return ""
            module = module_in_words(self.module_of(found))
            if module:
                return module
            key = found
        return ""

    def _giver_of(self, key: str) -> str | None:
        record = self.records.get(key)
        for item in record.inputs if record is not None else ():
            giver = self.flow().producer(key, item.path)
            if giver is not None:
                return giver.key
        return None

    def _named(self, key: str, known: Mapping[tuple[object, ...], str]) -> Sequence[str]:
        """Return the parameters of what a collective gets, by its values."""
        record = self.records.get(key)
        marks = [item.mark for item in record.inputs if item.is_tensor] if record else []
        return [name for mark in marks if (name := known.get(mark))]

    @cached_property
    def updated(self) -> Mapping[tuple[object, ...], str]:
        """The parameters of all updates, before and after them, by their values; "" where some are alike."""
        return self._in_updates("params")

    @cached_property
    def _gradients(self) -> Mapping[tuple[object, ...], str]:
        """The parameters by the gradients that updates get: an update may reduce those of DTensors."""
        return self._in_updates("grads")

    def _in_updates(self, wanted: str) -> Mapping[tuple[object, ...], str]:
        found: dict[tuple[object, ...], str] = {}
        for key in self.records:
            if not key.startswith(_OPTIMIZER):
                continue
            record = self.records[key]
            names = parameter_names(record.items)
            for item in record.items:
                place = parameter_place(item) if f".{wanted}." in item.path else None
                if place is not None and place in names:
                    name = names[place]
                    found[item.mark] = name if found.setdefault(item.mark, name) == name else ""
        return found

    @cached_property
    def carried(self) -> Mapping[str, Collection[str]]:
        """The parameters that are in the buckets of the run, as its records say, by operations."""
        found: dict[str, set[str]] = {}
        for key in self.meetings:
            names = self.raw(key).get("parameters")
            if isinstance(names, list):
                call = key.rpartition(".")[0]
                found.setdefault(operation_of(call), set()).update(bare_name(str(n)) for n in names)
        return found

    @cached_property
    def _readers(self) -> Mapping[str, str]:
        """The first record that gets what one gave, by its key."""
        return self.flow().readers()

    @cached_property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        """The names of the parameters whose gradients a collective reduced, by its key: as the record says,
        else of the updates that got them, followed back."""
        found: dict[str, list[str]] = {}
        for key in self.records:
            if is_collective(key):
                named = self.raw(key).get("parameters")
                if isinstance(named, list) and named:
                    found[key] = [bare_name(str(each)) for each in named]
        told = set(found)
        for key in self.records:
            if not key.startswith(_OPTIMIZER):
                continue
            record = self.records[key]
            for item in record.inputs:
                if ".grads." in item.path and (name := parameter_at(record, item.path)):
                    for giver in reductions_of(self.flow(), self.records, key, item.path):
                        if giver not in told:
                            found.setdefault(giver, []).append(name)
        return found


def reductions_of(
    flow: Flow, records: Mapping[str, FlowRecord], key: str, path: str
) -> Iterator[str]:
    """Yield the collectives that gave a value, the last one first; calls may have scaled or cut it since."""
    for _ in range(_ON_THE_WAY):
        giver = flow.producer(key, path)
        if giver is None or giver.key not in records:
            return
        record = records[giver.key]
        first = next((item for item in record.inputs if item.is_tensor), None)
        if is_collective(record.entry.call):
            yield giver.key
        elif not _hands_on(record.entry.call):
            return
        if first is None:
            return
        key, path = giver.key, first.path


@cache
def _hands_on(call: str) -> bool:
    """Return whether a call only scales, casts, copies or cuts a tensor."""
    name = call.rpartition(".")[0].rpartition(".")[2].strip("_").lower()
    return name in _SCALES


def factor_between(target: Item, golden: Item) -> float | None:
    """Return the factor by which all elements of a tensor are those of the golden run's, as Max, Min, Mean
    and Norm tell it; None where there is none, or it is 1."""
    norms = target.norm, golden.norm
    if None in norms or target.shape != golden.shape:
        return None
    mine, other = float(norms[0] or 0.0), float(norms[1] or 0.0)
    if not (0.0 < mine < math.inf and 0.0 < other < math.inf):
        return None
    factor = mine / other
    half = epsilon_of(golden.dtype) >= epsilon_of("float16")
    tolerance = _SAME_FACTOR_HALF if half else _SAME_FACTOR
    if abs(factor - 1.0) <= 4 * tolerance:
        return None
    for sign in (1.0, -1.0):
        if _fits(target, golden, sign * factor, tolerance):
            count = math.prod(golden.shape or ())
            if count > 1 and target.ends[0] != target.ends[1]:
                return sign * factor
            return sign * factor if _is_small_number(factor) else None
    return None


def _fits(target: Item, golden: Item, factor: float, tolerance: float) -> bool:
    """Return whether the statistics of the golden run times a factor are those of the target."""
    ends = golden.ends if factor > 0 else golden.ends[::-1]
    pairs = [*zip(target.ends, ends, strict=True), (target.mean, golden.mean)]
    root = math.sqrt(max(1, math.prod(golden.shape or ())))
    least = _TOO_SMALL * float(golden.norm or 0.0) / root
    for mine, other in pairs:
        if mine is None or other is None:
            return False
        if abs(mine - factor * other) > tolerance * abs(factor) * max(abs(other), least):
            return False
    return True


def _is_small_number(factor: float) -> bool:
    whole = max(factor, 1.0 / factor)
    return whole < _LARGEST_NUMBER and abs(whole - round(whole)) < 1e-5 * whole


def differs_in_words(difference: float, target: Item, golden: Item) -> str:
    """Return how far a value differs: `differs by 1 of its norm (it is 2 times the golden run's)`."""
    factor = factor_between(target, golden)
    times = f" (it is {factor:.4g} times the golden run's)" if factor is not None else ""
    return f"differs by {difference:.3g} of its norm{times}"


def factor_in_words(factor: float | None) -> str:
    """Return a factor as a cause, `x2`, `x0.5`; "" for none."""
    return "" if factor is None else f"x{factor:.4g}"
