"""What is said of a pair beside its values: a collective that one run alone has, or that was asked to do
something else, and the parameter that a row of an update is of.

Comes in: raw records, each with its key. Goes out: sentences, "" for none. Called by `rows`.
"""

from collections.abc import Iterable, Sequence

from ray_precheck.trace.difference.rows import ERROR, WARNING, TensorRow
from ray_precheck.trace.difference.unsteady import OPTIMIZER
from ray_precheck.trace.flow import is_collective, operation_of, unnumbered_meeting
from ray_precheck.trace.items import Item, parameter_names, parameter_place
from ray_precheck.trace.side import record_from_json
from ray_precheck.trace.terms import (
    call_terms,
    differing_terms,
    group_in_words,
    module_in_words,
)

Raw = tuple[tuple[str, bytes], ...]
OF_PARAMETER = "of the parameter "


def of_one_run(target: Raw, golden: Raw, module: str) -> str:
    """Return what is said of a collective or an update that one run alone has; "" for other calls."""
    key, raw = (target or golden)[0]
    call = key.rpartition(".")[0]
    if not (is_collective(call) or call.startswith(OPTIMIZER)):
        return ""
    told = []
    if is_collective(call):
        told.append(group_in_words(unnumbered_meeting(call, record_from_json(raw))))
    if inside := module_in_words(module):
        told.append(f"in {inside}")
    where = f" ({', '.join(told)})" if told else ""
    has, lacks = ("target", "golden run") if target else ("golden run", "target")
    return f"the {has} has {call}{where} here; the {lacks} has none"


def asked_of_both(target: Raw, golden: Raw) -> str:
    """Return how two collectives were asked to do something else, "" where they were not."""
    if len(target) != 1 or len(golden) != 1:
        return ""
    found = []
    for key, raw in (target[0], golden[0]):
        call = key.rpartition(".")[0]
        if not is_collective(call):
            return ""
        record = record_from_json(raw)
        found.append(
            (operation_of(call), call_terms(call, record, unnumbered_meeting(call, record)))
        )
    (operation, mine), (other, theirs) = found
    said = [f"it {sentence}" for _, sentence in differing_terms(mine, theirs)]
    return "; ".join(said) if operation == other else ""


def name_parameters(rows: Iterable[TensorRow], items: Sequence[Item]) -> None:
    """Say of the rows of an update that differ which parameter they are of: their names have its number."""
    names = parameter_names(items)
    for row in rows if names else ():
        place = parameter_place(row.item)
        if row.result in (ERROR, WARNING) and place is not None and place in names:
            row.messages.append(f"{OF_PARAMETER}{names[place]}")
