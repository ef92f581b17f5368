"""The update of an optimizer on all ranks: its tensors by the names of the parameters.

Comes in: the records of one update on the ranks of each stage. Goes out: an `Update`. Called by `together`.
The stages of a pipeline have other parameters, and so have the ranks whose optimizers share the state (ZeRO).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ray_precheck.trace.items import bare_name
from ray_precheck.trace.layouts.axes import LayoutStage

_NAMES, _LISTS = "names", ("params", "grads")


class UpdatePlace(NamedTuple):
    """A tensor of an update: the part of the record, the list in it (`params`, `state.exp_avg`), and the
    parameter."""

    part: str
    list: str
    name: str


@dataclass(slots=True)
class Update:
    """The tensors of an update, with the stage that has them and their elements on its ranks; `settings` has
    the first group of the first record, without its tensors, and `kwargs` its other arguments."""

    elements: dict[UpdatePlace, tuple[LayoutStage, list[Mapping[str, Any]]]] = field(
        default_factory=dict
    )
    settings: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)

    def record(self, made: Mapping[UpdatePlace, dict[str, Any]], other: "Update") -> dict[str, Any]:
        """Return a record of one group, with the tensors that were made; those that the other side has, too,
        come first and in its order."""
        shared = [place for place in sorted(self.elements) if place in other.elements]
        parts: dict[str, dict[str, Any]] = {"input_args": {}, "output": {}}
        names = dict.fromkeys(place.name for place in shared)
        parts["input_args"][_NAMES] = [{"type": "str", "value": name} for name in names]
        for place in shared:
            into = parts[place.part]
            *outer, last = place.list.split(".")
            for each in outer:
                into = into.setdefault(each, {})
            into.setdefault(last, []).append(made.get(place))
        return {
            "input_args": [{**self.settings, **parts["input_args"]}],
            "input_kwargs": self.kwargs,
            "output": [parts["output"]],
        }


def update_of(
    records: Sequence[Sequence[Mapping[str, Any]]], stages: Sequence[LayoutStage]
) -> Update:
    """Return an update, of whose stages the records of all ranks are given."""
    found = Update()
    for stage, ranks in zip(stages, records, strict=True):
        tensors = [dict(_tensors(record)) for record in ranks]
        for place in dict.fromkeys(each for rank in tensors for each in rank):
            having = [rank[place] for rank in tensors if place in rank]
            if len(having) == len(tensors):
                found.elements.setdefault(place, (stage, having))
            elif having:  # What some ranks update: the state of a parameter, or an expert.
                its = tuple(
                    at for at, rank in zip(stage.ranks, tensors, strict=True) if place in rank
                )
                axes = (("", len(its)),) if len(its) > 1 else ()
                found.elements.setdefault(place, (LayoutStage(its, axes), having))
        first = next(iter(ranks), {})
        if not found.settings:
            group = next(iter(_groups(first, "input_args")), {})
            found.settings = {
                name: each for name, each in group.items() if name not in (_NAMES, *_LISTS, "state")
            }
            kwargs = first.get("input_kwargs")
            found.kwargs = kwargs if isinstance(kwargs, dict) else {}
    return found


def _groups(record: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    found = record.get(part)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _tensors(record: Mapping[str, Any]) -> Iterator[tuple[UpdatePlace, Mapping[str, Any]]]:
    """Yield the tensors of a record with their places."""
    outs = _groups(record, "output")
    for number, group in enumerate(_groups(record, "input_args")):
        said = group.get(_NAMES)
        names = [each.get("value") if isinstance(each, dict) else "" for each in said or ()]
        parts = [("input_args", group)]
        if number < len(outs):
            parts.append(("output", outs[number]))
        for part, content in parts:
            lists = {name: content.get(name) for name in _LISTS}
            state = content.get("state")
            if isinstance(state, dict):
                lists |= {f"state.{name}": each for name, each in state.items()}
            for name, each in lists.items():
                if isinstance(each, list) and len(each) == len(names):
                    for parameter, element in zip(names, each, strict=True):
                        if (
                            isinstance(parameter, str)
                            and isinstance(element, dict)
                            and "shape" in element
                        ):
                            yield UpdatePlace(part, name, bare_name(parameter)), element
