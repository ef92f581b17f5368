"""What a collective was asked to do, in words: its group, its reduction, the rank that sends or gets; and the
name of a module.

Comes in: a record of a collective as it stands in the dump. Goes out: its `CallTerms`, and how those of two
runs differ. Called by the rows of a comparison and by the walk of `locate`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ray_precheck.trace.flow import Meeting, operation_of
from ray_precheck.trace.items import bare_name

# The reduction that DDP leaves to a communication hook of the program.
BY_A_HOOK = "a hook"
# What a reduction does, in words.
_REDUCTIONS = {
    "SUM": "sums",
    "AVG": "averages",
    "MAX": "takes the largest",
    "MIN": "takes the smallest",
    "PRODUCT": "multiplies",
}
# Where collectives have their reduction and the rank that sends or gets, by position.
_PLACES: Mapping[str, Mapping[str, int]] = {
    "all_reduce": {"op": 1},
    "reduce": {"dst": 1, "op": 2},
    "broadcast": {"src": 1},
    "reduce_scatter": {"op": 2},
    "reduce_scatter_tensor": {"op": 2},
    "gather": {"dst": 2},
    "scatter": {"src": 2},
}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")


class CallTerms(NamedTuple):
    """What a collective was asked to do: its group in words, its reduction, and who sends or gets."""

    group: str
    reduction: str
    source: str
    goal: str


def differing_terms(mine: CallTerms, theirs: CallTerms) -> Iterator[tuple[str, str]]:
    """Yield a cause and a sentence for each of the terms that differ."""
    if mine.group != theirs.group and mine.group and theirs.group:
        if mine.group.startswith(("to ", "from ")):
            yield "another rank", f"goes {mine.group} (golden: {theirs.group})"
        else:
            yield "another group", f"ran in {mine.group} (golden: {theirs.group})"
    if mine.reduction != theirs.reduction:
        ours, others = (
            _REDUCTIONS.get(each, f"reduces by {each or 'a hook of the program'}")
            for each in (mine.reduction, theirs.reduction)
        )
        cause = f"{mine.reduction or BY_A_HOOK} for {theirs.reduction or BY_A_HOOK}"
        yield cause, f"{ours} where that of the golden run {others} ({cause})"
    for verb, own, other in (
        ("sends", mine.source, theirs.source),
        ("gets", mine.goal, theirs.goal),
    ):
        if own != other:
            yield (
                "another source" if verb == "sends" else "another destination",
                f"has another rank that {verb}: rank {own or 'unknown'} (golden: {other or 'unknown'})",
            )


def call_terms(call: str, record: Mapping[str, Any], meeting: Meeting | None) -> CallTerms:
    """Return what a collective was asked to do."""
    operation = operation_of(call)
    reduction = _argument(record, operation, "op").rpartition(".")[2]
    if not reduction and operation.rpartition(".")[2] in _REDUCING:
        reduction = "SUM"
    return CallTerms(
        group_in_words(meeting),
        {"PROD": "PRODUCT"}.get(reduction.upper(), reduction.upper()),
        _rank(record, operation, "src", meeting),
        _rank(record, operation, "dst", meeting),
    )


def _rank(record: Mapping[str, Any], operation: str, name: str, meeting: Meeting | None) -> str:
    """Return the rank that sends or gets, among all ranks, as text; "" for collectives that have none."""
    if meeting is None or meeting.peer is not None:
        return ""
    inner = _argument(record, operation, f"group_{name}")
    ranks = meeting.ranks
    if inner.isdigit() and int(inner) < len(ranks):
        return str(ranks[int(inner)])
    return _argument(record, operation, name)


def _argument(record: Mapping[str, Any], operation: str, name: str) -> str:
    """Return an argument that is no tensor, as text; "" where it was not passed."""
    named, args = record.get("input_kwargs"), record.get("input_args")
    value = named.get(name) if isinstance(named, dict) else None
    place = _PLACES.get(operation, {}).get(name)
    if value is None and place is not None and isinstance(args, list) and place < len(args):
        value = args[place]
    found = value.get("value") if isinstance(value, dict) else None
    return str(found) if isinstance(found, str | int) else ""


def group_in_words(meeting: Meeting | None) -> str:
    """Return where a collective ran: `group 0-1`, or `to rank 1` of a message."""
    if meeting is None:
        return ""
    if meeting.peer is not None:
        way = "to" if meeting.operation in ("send", "isend") else "from"
        return f"{way} rank {meeting.peer}"
    return f"group {meeting.group}" if meeting.group != "world" else "all ranks"


def module_in_words(key: str) -> str:
    """Return the name of a module by its record, `Module.layers.0.o.Linear.forward.0`: `layers.0.o`."""
    parts = key.removeprefix("Module.").split(".")
    return bare_name(".".join(parts[:-3])) if len(parts) > 3 else ""
