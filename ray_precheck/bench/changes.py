"""Which tensors a call changes beside its outputs: running statistics, the states of an optimizer.

Comes in: a record. Goes out: the tensors among its inputs, and their names in the detail rows
(`X.0.forward.changed.running_mean`). Called where the call is planned, judged and saved.

A dump of ours tells it. For one that does not, the table of operators does: they may change these tensors,
and whether they did is seen when they have run.
"""

import re
from typing import NamedTuple

from ray_precheck.bench.checkable import changes_its_input
from ray_precheck.operators.effects import CHANGES
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.values import Constant

_PATH = re.compile(r"input_(?:args\.(?P<position>\d+)|kwargs\.(?P<name>[^.]*))(?P<rest>.*)")


class Changed(NamedTuple):
    """A tensor that a call may change: its position among all input tensors, its argument path, and its
    name in rows, which has no dots."""

    position: int
    path: str
    name: str


def changed_tensors(record: ApiRecord) -> tuple[Changed, ...]:
    """Return the tensors that a call may change, but for those that are its outputs, or lie in the memory of
    one: a bench that has them apart does not change them."""
    names, marked = _parameters(record)
    told = {path for path, _ in record.changed or ()}
    if not marked and not told:
        return ()
    in_place = changes_its_input(record)
    found: list[Changed] = []
    first: dict[str, str] = {}
    outputs: set[str] = set()
    for path, spec in record.input_tensors():
        first[path] = first.get(spec.shares, path)
        if path == "input_kwargs.out" or (in_place and path == "input_args.0"):
            outputs.add(first[path])
    for position, (path, _) in enumerate(record.input_tensors()):
        match = _PATH.fullmatch(path)
        assert match is not None
        index = -1 if match["position"] is None else int(match["position"])
        name = match["name"] if index < 0 else names[index] if index < len(names) else ""
        is_output = match["name"] == "out" or (in_place and index == 0) or first[path] in outputs
        if not is_output and (path in told or name in marked):
            label = f"{name}{match['rest']}" if name else path
            found.append(Changed(position, path, re.sub(r"\W", "_", label)))
    return tuple(found)


def _parameters(record: ApiRecord) -> tuple[list[str], set[str]]:
    """Return the names of an operator's first parameters, and those of the tensors that it may change."""
    row = CHANGES.of(record.name.type_name, record.framework)
    words = [word.partition("!") for word in row.split()] if row else []
    names = [word for word, _, _ in words]
    arguments = (*zip(names, record.args, strict=False), *record.kwargs)
    given = {name for name, spec in arguments if spec != Constant(None)}
    marked = {name for name, mark, needed in words if mark and (not needed or needed in given)}
    return names, marked
