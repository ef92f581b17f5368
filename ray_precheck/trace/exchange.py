"""What a collective makes of what its ranks bring: which elements of which inputs stand where in its outputs.

Comes in: the records of all ranks of a collective. Goes out: a `Made` for each tensor that a rank gets.
Called by the job that recomputes collectives. The semantics are those of torch.distributed, whose names and
arguments mindspore.mint.distributed has, too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from ray_precheck.trace.items import INPUT, OUTPUT, Item

SUM, MEAN, LARGEST, SMALLEST, PRODUCT = "SUM", "AVG", "MAX", "MIN", "PRODUCT"
_OPERATIONS = {
    SUM: SUM,
    MEAN: MEAN,
    LARGEST: LARGEST,
    SMALLEST: SMALLEST,
    PRODUCT: PRODUCT,
    "PROD": PRODUCT,
}
# The arguments of each collective: what it reads, what it writes, and all in their order.
_GATHERED = ("output_tensor", "input_tensor", "group")
_SIGNATURES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "all_reduce": ("tensor", "tensor", ("tensor", "op")),
    "reduce": ("tensor", "tensor", ("tensor", "dst", "op")),
    "broadcast": ("tensor", "tensor", ("tensor", "src")),
    "all_gather": ("tensor", "tensor_list", ("tensor_list", "tensor")),
    "all_gather_into_tensor": ("input_tensor", "output_tensor", _GATHERED),
    "all_gather_single": ("input_tensor", "output_tensor", _GATHERED),
    "_all_gather_base": ("input_tensor", "output_tensor", _GATHERED),
    "reduce_scatter": ("input_list", "output", ("output", "input_list", "op")),
    "reduce_scatter_tensor": ("input", "output", ("output", "input", "op")),
    "reduce_scatter_single": ("input", "output", ("output", "input", "op")),
    "_reduce_scatter_base": ("input", "output", ("output", "input", "op")),
    "all_to_all": (
        "input_tensor_list", "output_tensor_list", ("output_tensor_list", "input_tensor_list"),
    ),
    "all_to_all_single": (
        "input", "output", ("output", "input", "output_split_sizes", "input_split_sizes"),
    ),
    "gather": ("tensor", "gather_list", ("tensor", "gather_list", "dst")),
    "scatter": ("scatter_list", "tensor", ("tensor", "scatter_list", "src")),
    "send": ("tensor", "", ("tensor", "dst")),
    "recv": ("", "tensor", ("tensor", "src")),
    # One argument, which is read, and one output. What a functional collective got and gave is the operator's
    # own, for dimension 0.
    **dict.fromkeys(
        (
            "ddp_all_reduce", "ddp_broadcast", "functional.all_reduce", "functional.broadcast",
            "functional.all_gather_tensor", "functional.reduce_scatter_tensor",
            "functional.all_to_all_single", "functional.all_reduce_coalesced",
            "functional.all_gather_into_tensor_coalesced",
            "functional.reduce_scatter_tensor_coalesced",
        ),
        ("tensor", "tensor", ("tensor",)),
    ),
}  # fmt: skip


class ExchangePart(NamedTuple):
    """`length` elements of a rank's tensor from the flat position `start` on."""

    rank: int
    item: Item
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that a rank gets: in its order, pieces that are each an operation over parts of inputs; a
    piece with one part is a copy of it."""

    rank: int
    item: Item
    operation: str
    pieces: tuple[tuple[ExchangePart, ...], ...]


class RankRecord(NamedTuple):
    """The record of a rank: its number among all ranks, and its JSON, decoded."""

    rank: int
    record: Mapping[str, Any]


def made_by(operation: str, records: Sequence[RankRecord]) -> list[Made]:
    """Return what each rank gets; `records` are those of all ranks in the order of the group.

    Nothing is returned for collectives and reductions that are not known, nor for those whose results
    were not captured.
    """
    name = {"isend": "send", "irecv": "recv"}.get(operation, operation)
    if name not in _SIGNATURES:
        return []
    if name in ("send", "recv"):
        sides = [_Side(each.rank, each.record, *_SIGNATURES[_end_of(each)]) for each in records]
        return list(_send(sides))
    sides = [_Side(each.rank, each.record, *_SIGNATURES[name]) for each in records]
    return list(_MAKERS[name](sides))


def _end_of(each: "RankRecord") -> str:
    """Return which end of a message a rank is: the sender's tensor was read."""
    args, kwargs = each.record.get("input_args"), each.record.get("input_kwargs")
    first = args[0] if isinstance(args, list) and args else None
    named = kwargs.get("tensor") if isinstance(kwargs, dict) else None
    return "send" if first or named else "recv"


class _Side:
    """A rank's record, as the signature of its collective reads it."""

    def __init__(
        self,
        rank: int,
        record: Mapping[str, Any],
        reads: str,
        writes: str,
        names: Sequence[str],
    ) -> None:
        self.rank, self._record, self._names = rank, record, names
        # With what is no tensor: a parameter without a gradient has none.
        self._read = list(self._items(reads, INPUT))
        self._written = list(self._items(writes, OUTPUT))
        self.inputs = [each for each in self._read if each.is_tensor]
        self.outputs = [each for each in self._written if each.is_tensor]
        self.operation = _OPERATIONS.get(self._word("op") or SUM, "")

    @property
    def count(self) -> int:
        """How many tensors it reads and writes, where it does so with each alone."""
        return min(len(self._read), len(self._written))

    def alone(self, number: int) -> "_Side":
        """Return the same with one of its tensors alone."""
        one = copy(self)
        one.inputs = [each for each in self._read[number : number + 1] if each.is_tensor]
        one.outputs = [each for each in self._written[number : number + 1] if each.is_tensor]
        return one

    def value(self, name: str) -> Any:
        """Return an argument that is no tensor; None where it is missing."""
        return _plain(self._argument(name, INPUT))

    def _argument(self, name: str, part: str) -> Any:
        values = self._values(part)
        place = self._place(name)
        return values[place] if 0 <= place < len(values) else None

    def _values(self, part: str) -> list[Any]:
        """Return what was got by position and then by name, or all that was given, in the same order."""
        args, kwargs = self._record.get("input_args"), self._record.get("input_kwargs")
        output = self._record.get("output")
        if part == OUTPUT:
            return output if isinstance(output, list) else []
        named = list(kwargs.values()) if isinstance(kwargs, dict) else []
        return [*(args if isinstance(args, list) else []), *named]

    def _place(self, name: str) -> int:
        """Return which of all arguments one is; -1 where it was not passed."""
        args, kwargs = self._record.get("input_args"), self._record.get("input_kwargs")
        positions = len(args) if isinstance(args, list) else 0
        if name in self._names and self._names.index(name) < positions:
            return self._names.index(name)
        names = list(kwargs) if isinstance(kwargs, dict) else []
        return positions + names.index(name) if name in names else -1

    def _items(self, name: str, part: str) -> Iterator[Item]:
        value = self._argument(name, part) if name else None
        several = value if isinstance(value, list) else [value]
        for number, each in enumerate(several):
            path = f"{part}.{self._place(name)}"
            path += f".{number}" if isinstance(value, list) else ""
            yield Item(path, part, each if isinstance(each, dict) else None)

    def _word(self, name: str) -> str:
        found = self.value(name)
        return found.rpartition(".")[2].upper() if isinstance(found, str) else ""


def _plain(element: Any) -> Any:
    if isinstance(element, list):
        return [_plain(each) for each in element]
    return element.get("value") if isinstance(element, dict) else None


def _whole(side: _Side, item: Item) -> ExchangePart:
    return ExchangePart(side.rank, item, 0, math.prod(item.shape or ()))


def _all_reduce(sides: Sequence[_Side]) -> Iterator[Made]:
    if not all(side.inputs for side in sides):
        return
    parts = tuple(_whole(side, side.inputs[0]) for side in sides)
    for side in sides:
        if side.outputs and side.operation:
            yield Made(side.rank, side.outputs[0], side.operation, (parts,))


def _reduce(sides: Sequence[_Side]) -> Iterator[Made]:
    target = _rank_in(sides, "dst")
    if target is not None:
        yield from (each for each in _all_reduce(sides) if each.rank == target.rank)


def _broadcast(sides: Sequence[_Side]) -> Iterator[Made]:
    source = _rank_in(sides, "src")
    if source is None or not source.inputs:
        return
    for side in sides:
        if side.outputs:
            piece = (_whole(source, source.inputs[0]),)
            yield Made(side.rank, side.outputs[0], SUM, (piece,))


def _all_gather(sides: Sequence[_Side]) -> Iterator[Made]:
    if not all(side.inputs for side in sides):
        return
    parts = [_whole(side, side.inputs[0]) for side in sides]
    for side in sides:
        if len(side.outputs) == len(sides):
            for item, part in zip(side.outputs, parts, strict=True):
                yield Made(side.rank, item, SUM, ((part,),))
        elif side.outputs:
            yield Made(side.rank, side.outputs[0], SUM, tuple((part,) for part in parts))


def _gather(sides: Sequence[_Side]) -> Iterator[Made]:
    for side in sides:
        if side.outputs:
            yield from (each for each in _all_gather(sides) if each.rank == side.rank)


def _scatter(sides: Sequence[_Side]) -> Iterator[Made]:
    source = _rank_in(sides, "src")
    if source is None or len(source.inputs) != len(sides):
        return
    for side, item in zip(sides, source.inputs, strict=True):
        if side.outputs:
            yield Made(side.rank, side.outputs[0], SUM, ((_whole(source, item),),))


def _reduce_scatter(sides: Sequence[_Side]) -> Iterator[Made]:
    for place, side in enumerate(sides):
        if not side.outputs or not side.operation:
            continue
        count = math.prod(side.outputs[0].shape or ())
        parts = []
        for other in sides:
            if len(other.inputs) == len(sides) > 1:
                parts.append(_whole(other, other.inputs[place]))
            elif other.inputs:
                parts.append(ExchangePart(other.rank, other.inputs[0], place * count, count))
        if len(parts) == len(sides):
            yield Made(side.rank, side.outputs[0], side.operation, (tuple(parts),))


def _all_to_all(sides: Sequence[_Side]) -> Iterator[Made]:
    if not all(len(side.inputs) == len(sides) for side in sides):
        return
    for place, side in enumerate(sides):
        if len(side.outputs) != len(sides):
            continue
        for other, item in zip(sides, side.outputs, strict=True):
            yield Made(side.rank, item, SUM, ((_whole(other, other.inputs[place]),),))


def _all_to_all_single(sides: Sequence[_Side]) -> Iterator[Made]:
    if not all(side.inputs and side.outputs for side in sides):
        return
    splits = [_splits(side, len(sides)) for side in sides]
    for place, side in enumerate(sides):
        pieces = []
        for other, sizes in zip(sides, splits, strict=True):
            start = sum(sizes[:place])
            pieces.append((ExchangePart(other.rank, other.inputs[0], start, sizes[place]),))
        yield Made(side.rank, side.outputs[0], SUM, tuple(pieces))


def _splits(side: _Side, ranks: int) -> list[int]:
    """Return how many elements a rank sends to each; equal parts where it does not say."""
    shape = side.inputs[0].shape or ()
    row = math.prod(shape[1:])
    said = side.value("input_split_sizes")
    if isinstance(said, list) and len(said) == ranks and all(type(each) is int for each in said):
        return [each * row for each in said]
    return [math.prod(shape) // ranks] * ranks


def _send(sides: Sequence[_Side]) -> Iterator[Made]:
    senders = [side for side in sides if side.inputs and not side.outputs]
    for side in sides:
        if side.outputs and len(senders) == 1:
            piece = (_whole(senders[0], senders[0].inputs[0]),)
            yield Made(side.rank, side.outputs[0], SUM, (piece,))


def _rank_in(sides: Sequence[_Side], name: str) -> _Side | None:
    """Return the rank that an argument names, by its number or by its place in the group (`group_src`)."""
    place = next((found for side in sides if type(found := side.value(f"group_{name}")) is int), -1)
    if 0 <= place < len(sides):
        return sides[place]
    wanted = next((found for side in sides if type(found := side.value(name)) is int), None)
    return next((side for side in sides if side.rank == wanted), None)


def _each(sides: Sequence[_Side], make: "_Make") -> Iterator[Made]:
    """Yield what a collective makes of lists of tensors, each of which goes its own way."""
    for number in range(min((side.count for side in sides), default=0)):
        yield from make([side.alone(number) for side in sides])


def _reduced_buckets(sides: Sequence[_Side]) -> Iterator[Made]:
    """Yield the means of gradients; where a hook of the script reduces them its record has no operation."""
    if all(side.value("op") is not None for side in sides):
        yield from _each(sides, _all_reduce)


_Make = Callable[[Sequence[_Side]], Iterator[Made]]
_MAKERS: Mapping[str, _Make] = {
    "ddp_all_reduce": _reduced_buckets,
    "ddp_broadcast": lambda sides: _each(sides, _broadcast),
    "functional.all_reduce": _all_reduce,
    "functional.broadcast": _broadcast,
    "functional.all_gather_tensor": _all_gather,
    "functional.reduce_scatter_tensor": _reduce_scatter,
    "functional.all_to_all_single": _all_to_all_single,
    "functional.all_reduce_coalesced": lambda sides: _each(sides, _all_reduce),
    "functional.all_gather_into_tensor_coalesced": lambda sides: _each(sides, _all_gather),
    "functional.reduce_scatter_tensor_coalesced": lambda sides: _each(sides, _reduce_scatter),
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather,
    "all_gather_single": _all_gather,
    "_all_gather_base": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter,
    "_reduce_scatter_base": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "gather": _gather,
    "scatter": _scatter,
}
