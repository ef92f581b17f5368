"""The operations of a run of graphs, and the dump that is made of them.

Comes in: operations and their tensors, as a reader of TensorFlow's captures finds them, in the order in which
they were seen. Goes out: the records of a `CaptureWriter`. Called by `tensorflow`.

Tensors have an identity, so that it is known who gave each. At the borders of graphs they have another one
inside than outside, and the capture does not say which belong together: a function's argument, what a loop or
a call gives, a variable that is read. There equal bytes tell: the last operation before that gave them.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ray_precheck.formats.conversion import TENSORS, CaptureWriter, Element
from ray_precheck.formats.protobuf import Budget, dtype_named, tensor_of
from ray_precheck.schema.dtypes import Array

PREFIX = "TensorFlow"
# Operations whose outputs come from elsewhere: they give what another one made, under another identity.
_PASSES_ON = frozenset(
    "Placeholder PlaceholderWithDefault _Arg _Retval ReadVariableOp VariableV2 Identity Function While If"
    " Case StatelessWhile StatelessIf StatelessCase StatefulPartitionedCall PartitionedCall".split()
)
# What an operation does to the variable that its first input names; its second input is the change.
UPDATES: dict[str, Callable[[Array, Array], Array]] = {
    "AssignSubVariableOp": np.subtract,
    "AssignAddVariableOp": np.add,
}
_ASSIGNS = "AssignVariableOp"
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+?)_\d+")
_NO_NAME = re.compile(r"\W+")


@dataclass(slots=True)
class Operation:
    """An operation that has run: its type, its name in its graph, and the identities of its tensors.

    `inputs` are the identities of tensors and variables, "" where one is not known. `graph` is the name of
    the graph, "" for operations outside of one, and `run` the number of this run of the graph, None outside.
    `stack` are the lines of the program that made it.
    """

    type: str
    name: str = ""
    graph: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    stack: Sequence[str] = ()
    run: int | None = None

    @property
    def passes_on(self) -> bool:
        """Whether it gives what another operation made. An eager constant may be a variable, which eager code
        reads without an operation."""
        return self.type in _PASSES_ON or (self.type == "Const" and self.run is None)

    @property
    def kind(self) -> str:
        """The type, as a key has it: `Function.step` for the function `__inference_step_343`."""
        if self.type == "Function":
            found = _FUNCTION.fullmatch(self.name)
            return f"Function.{_NO_NAME.sub('_', found[1] if found else self.name) or 'unnamed'}"
        return _NO_NAME.sub("_", self.type) or "Unknown"


class Tensors:
    """The tensors of a run, each written once: their elements by their identities."""

    def __init__(self, writer: CaptureWriter) -> None:
        self.elements: dict[str, Element] = {}
        self.digests: dict[str, bytes] = {}
        self._writer = writer
        self._budget = Budget()
        self.unread: Counter[str] = Counter()
        self.times_us: dict[str, int] = {}

    def add(self, identity: str, message: bytes | memoryview, time_us: int = 0) -> None:
        """Keep the tensor of a `TensorProto`; one that holds no numbers, or is broken, is counted."""
        try:
            found = tensor_of(message, self._budget)
        except ValueError as error:
            self.unread[str(error)] += 1
            return
        if found.values is None:
            if found.dtype:
                self.unread[found.problem] += 1
            return
        self.times_us[identity] = time_us
        self.keep(identity, found.values, found.dtype)

    def keep(self, identity: str, values: Array, dtype: str) -> None:
        """Keep values under an identity."""
        self.digests[identity] = _digest(values)
        self.elements[identity] = self._writer.kept(values, dtype=dtype, variable=identity)

    def add_summary(self, identity: str, mode: int, message: bytes | memoryview) -> None:
        """Keep what tfdbg2 says of a tensor instead of its values, in a mode such as FULL_HEALTH."""
        try:
            numbers = tensor_of(message, self._budget).values
        except ValueError as error:
            self.unread[str(error)] += 1
            return
        element = None if numbers is None else _summary(mode, numbers.reshape(-1).tolist())
        if element is not None:
            self.elements[identity] = {**element, "variable": identity}

    def values(self, identity: str) -> Array | None:
        """Return the values of a tensor that is kept; None for another."""
        element = self.elements.get(identity)
        if element is None or "data_name" not in element:
            return None
        return np.load(self.file(element))  # type: ignore[no-any-return]

    def file(self, element: Element) -> Path:
        """Return the file that has the values of an element."""
        return self._writer.folder / TENSORS / str(element["data_name"])


def _summary(mode: int, numbers: list[float]) -> Element | None:
    """Return the element of a tensor of which numbers are known: debug_event.proto, TensorDebugMode.

    The shape is known in the mode SHAPE, for up to six dimensions; else the tensor stands as one of a
    single dimension.
    """
    if len(numbers) < _NUMBERS.get(mode, math.inf) or not all(map(math.isfinite, numbers)):
        return None
    found = [max(0, int(each)) for each in numbers]
    if mode == 2:  # CURT_HEALTH: identity, whether anything is not finite
        return _element("float", [1], {"nan": found[1]})
    if mode == 3:  # CONCISE_HEALTH: identity, count, -inf, +inf, NaN
        return _element("float", found[1:2], dict(zip(_NON_FINITE, found[2:5], strict=True)))
    dtype = dtype_named(found[2] if mode == 4 else found[1])
    if mode == 5:  # SHAPE: identity, dtype, rank, count, six sizes
        rank = found[2]
        return _element(dtype, found[4 : 4 + rank] if rank <= 6 else found[3:4], None)
    health = dict(zip((*_NON_FINITE, "negative", "zero"), found[5:10], strict=True))
    return _element(dtype, found[4:5] if found[3] else [], health)


# How many numbers each mode has, and what is counted in this order.
_NUMBERS = {2: 2, 3: 5, 4: 11, 5: 10}
_NON_FINITE = ("-inf", "+inf", "nan")


def _element(dtype: str, shape: list[int], health: dict[str, int] | None) -> Element | None:
    if not dtype:
        return None
    known = {} if health is None else {"health": health}
    return {"type": "Tensor", "dtype": dtype, "shape": shape, **known}


def _digest(values: Array) -> bytes:
    state = hashlib.blake2b(repr((str(values.dtype), values.size)).encode(), digest_size=16)
    state.update(np.ascontiguousarray(values).data)
    return state.digest()


def write_run(operations: Iterable[Operation], tensors: Tensors, writer: CaptureWriter) -> None:
    """Write the records of a run. An operation stands behind those that made what it gets."""
    ordered = in_flow_order(list(operations))
    counts: Counter[str] = Counter()
    known = _Contents(tensors)
    for operation in ordered:
        updated = known.updated(operation)
        if updated is not None:
            operation.inputs[0] = updated[0]
            operation.outputs.append(updated[1])
        inputs = [tensors.elements.get(each) for each in operation.inputs]
        inputs += known.borrowed(operation)
        outputs = [tensors.elements.get(each) for each in operation.outputs]
        known.learn(operation)
        if not any(inputs) and not any(outputs):
            continue  # It gets and gives handles alone.
        if operation.passes_on and not known.tells(operation):
            continue  # Who made what it passes on is not known; it makes nothing itself.
        kind = operation.kind
        key = f"{PREFIX}.{kind}.{counts[kind]}.forward"
        counts[kind] += 1
        told = {"type": operation.type, "name": operation.name, "graph": operation.graph}
        value = {"input_args": inputs, "input_kwargs": {}, "output": outputs, "operator": told}
        writer.record(key, value, module=operation.name, stack=operation.stack)
    for problem, count in sorted(tensors.unread.items())[:3]:
        writer.notes.append(f"{count} tensors are left out: {problem}")


def in_flow_order(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations in their order, but each behind those that made what it gets; without recursion,
    since a chain may be as long as a run."""
    maker = {output: at for at, each in enumerate(operations) for output in each.outputs}
    states = [0] * len(operations)  # 1: waits for its inputs, 2: in its place
    found: list[Operation] = []
    for first in range(len(operations)):
        waiting = [first]
        while waiting:
            at = waiting[-1]
            if states[at] == 2:
                waiting.pop()
                continue
            before = [maker[each] for each in operations[at].inputs if each in maker]
            missing = [] if states[at] else [each for each in before if not states[each]]
            states[at] = 1
            if missing:
                waiting += reversed(missing)
                continue
            states[at] = 2
            found.append(operations[at])
            waiting.pop()
    return found


class _Contents:
    """What the tensors hold that were seen so far: who gave it last, and what the variables hold."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._last: dict[bytes, str] = {}
        self._variables: dict[str, str] = {}

    def borrowed(self, operation: Operation) -> list[Element | None]:
        """Return the tensors that an operation passes on: those that hold what it gives."""
        if not operation.passes_on:
            return []
        digests = [self._tensors.digests.get(each) for each in operation.outputs]
        found = [self._last[each] for each in digests if each is not None and each in self._last]
        return [self._tensors.elements[each] for each in found if each not in operation.inputs]

    def tells(self, operation: Operation) -> bool:
        """Return whether the bytes are known of what an operation gives."""
        return any(each in self._tensors.digests for each in operation.outputs)

    def learn(self, operation: Operation) -> None:
        """Take note of what an operation gives."""
        for each in operation.outputs:
            digest = self._tensors.digests.get(each)
            if digest is not None:
                self._last[digest] = each
        if operation.type == "ReadVariableOp" and operation.inputs and operation.outputs:
            self._variables[operation.inputs[0]] = operation.outputs[0]
        if operation.type == _ASSIGNS and len(operation.inputs) > 1:
            self._variables[operation.inputs[0]] = operation.inputs[1]

    def updated(self, operation: Operation) -> tuple[str, str] | None:
        """Return the identities of what a variable held before an update, and after it; None where they are
        not known. No capture has the second: it is computed as TensorFlow does, in the variable's dtype."""
        change = UPDATES.get(operation.type)
        if change is None or len(operation.inputs) < 2:
            return None
        variable, given = operation.inputs[:2]
        before = self._variables.get(variable, "")
        old, delta = self._tensors.values(before), self._tensors.values(given)
        if old is None or delta is None or old.shape != delta.shape or old.dtype != delta.dtype:
            return None
        if str(old.dtype) != self._tensors.elements[before]["dtype"]:
            return None  # a bfloat16 that is kept as float32
        after = f"{variable} after {given}"
        with np.errstate(all="ignore"):
            self._tensors.keep(after, change(old, delta), str(old.dtype))
        self._variables[variable] = after
        return before, after
