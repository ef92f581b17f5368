"""What a record says of the arguments of a call beside their values: their names, and which were changed.

Comes in: the arguments of a call, and the frame that makes it. Goes out: a field of each tensor that the
model has a name for, which msprobe ignores (`"argument": "attention_mask"`, `"parameter": "layers.0.weight"`,
`"buffer": "rotary.inv_freq"`), and the tensors that the call has changed, each with the path of the argument
that it is. The recorders of both frameworks ask. A tensor is known by its identity: what was computed from it
has no name.

A new version tells that a tensor was changed, but kernels change tensors without one (the running
statistics of batch_norm): which operators do is known (`operators.effects`). Of both the statistics say
whether the values are others; a call that changes a tensor and puts it back has changed nothing.
"""

import functools
import inspect
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from ray_precheck.capture.recording.stacks import frames_named
from ray_precheck.capture.writing.elements import quoted
from ray_precheck.foreign import caught
from ray_precheck.numerics.one_pass import COMPILED
from ray_precheck.operators.effects import CHANGES

Kind: TypeAlias = type | tuple[type, ...]
ARGUMENT, PARAMETER, BUFFER = "argument", "parameter", "buffer"
_VARIADIC = inspect.Parameter.VAR_POSITIONAL
# Batches are dictionaries or lists of tensors; deeper ones are not looked into.
_DEEPEST = 2
_MOST_INPUTS = 256
_DEEPEST_TENSOR = 10
_FIELD = re.compile(rf', "(?:{ARGUMENT}|{PARAMETER}|{BUFFER})": "(?:[^"\\]|\\.)*"')
# The argument paths of the places of arguments.
_ARGUMENTS = {"input": "input_args", "kwargs": "input_kwargs"}


def without_names(fields: str) -> str:
    """Return the fields of a record without those of names: a region that is computed again gets copies
    of tensors, which have none."""
    return _FIELD.sub("", fields)


@functools.lru_cache(1 << 10)
def name_field(name: str) -> str:
    """Return the field of what a model calls its input."""
    return f', "{ARGUMENT}": {quoted(name)}'


class CallNames:
    """The names of what a call gets.

    `states` are fields by the identities of parameters and buffers, each behind a weak reference: another
    tensor may have got the place in memory of one that has gone.
    """

    __slots__ = ("_find", "_inputs", "states")

    def __init__(
        self, find: Callable[[], dict[int, str]], states: dict[int, tuple[weakref.ref[Any], str]]
    ) -> None:
        self._find = find
        self._inputs: dict[int, str] | None = None
        self.states = states

    @property
    def inputs(self) -> dict[int, str]:
        """The names of the model's inputs by identity; it is looked for the model when they are asked for."""
        if self._inputs is None:
            self._inputs = self._find()
        return self._inputs

    def field(self, tensor: Any) -> str:
        """Return the field of a tensor, "" for one without a name."""
        name = self.inputs.get(id(tensor))
        if name is not None:
            return name_field(name)
        found = self.states.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else ""


class GivenNames:
    """Names the tensors that operators get.

    `entry` is the method through which the framework calls modules, `is_module` tells its modules from other
    objects that have one, `forward_of` gives the method whose arguments have the names, and `states_of` the
    parameters and buffers of a model: kind, name, tensor.
    """

    def __init__(
        self,
        entry: str,
        is_module: Callable[[Any], bool],
        forward_of: Callable[[Any], Callable[..., Any]],
        states_of: Callable[[Any], Iterator[tuple[str, str, Any]]],
    ) -> None:
        self._entry = entry
        self._is_module = is_module
        self._forward_of = forward_of
        self._states_of = states_of
        self._states: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._models: dict[int, weakref.ref[Any]] = {}
        self._signatures: dict[type, list[str] | None] = {}

    def around(self, frame: FrameType | None) -> "CallNames":
        """Return the names of the tensors that a call in that frame gets."""
        return CallNames(functools.partial(self._inputs, frame), self._states)

    def _inputs(self, frame: FrameType | None) -> dict[int, str]:
        """Return the names of the inputs of the outermost model in which a frame runs, by identity.

        A wrapper that passes on whatever it gets (DistributedDataParallel) has no names for it: then the
        model within has.
        """
        found: dict[int, str] = {}
        for call in reversed(frames_named(frame, self._entry)):
            local = call.f_locals
            model = local.get("self")
            kind = type(model)
            if kind not in self._signatures and not self._is_module(model):
                continue
            learned = self._models.get(id(model))
            if learned is None or learned() is not model:
                self._learn(model)
            names = self._signatures[kind] if kind in self._signatures else self._names_of(model)
            args, kwargs = local.get("args", ()), local.get("kwargs", {})
            for name, value in (*zip(names or (), args, strict=False), *kwargs.items()):
                if hasattr(value, "requires_grad") and len(found) < _MOST_INPUTS:  # a tensor
                    found.setdefault(id(value), name)
                else:
                    _add(found, name, value)
            if names is not None or not args:
                break
        return found

    def _learn(self, model: Any) -> None:
        """Take note of the parameters and buffers of a model that is met the first time."""
        self._models[id(model)] = weakref.ref(model)
        for kind, name, tensor in self._states_of(model):
            known = self._states.get(id(tensor))
            if known is None or known[0]() is not tensor:
                field = f', "{kind}": {quoted(name)}'
                self._states[id(tensor)] = weakref.ref(tensor), field

    def _names_of(self, model: Any) -> list[str] | None:
        """Return the names of a model's arguments by position, None where it takes any."""
        signature, error = caught(lambda: inspect.signature(self._forward_of(model)))
        names: list[str] | None = []
        if signature is not None and error is None:
            given = signature.parameters.values()
            any_number = any(each.kind is _VARIADIC for each in given)
            names = None if any_number else list(signature.parameters)
        self._signatures[type(model)] = names
        return names


@functools.lru_cache(1 << 10)
def _is_mapping(kind: type) -> bool:
    return isinstance(kind, type) and issubclass(
        kind, Mapping
    )  # which takes five times as long as this look-up


def _add(found: dict[int, str], name: str, value: Any, depth: int = 0) -> None:
    if len(found) >= _MOST_INPUTS:
        return
    # A list of a million numbers is asked for at each call.
    if isinstance(value, list | tuple):
        inner = list(enumerate(value[:_MOST_INPUTS]))
    elif _is_mapping(type(value)):  # type: ignore[arg-type]
        inner = list(islice(value.items(), _MOST_INPUTS))
    else:
        found.setdefault(id(value), str(name))
        return
    for key, each in inner if depth < _DEEPEST else ():
        _add(found, f"{name}.{key}", each, depth + 1)


class Given(NamedTuple):
    """A tensor that a call got: its version, its place among the values ("input.1", "kwargs.out") and what
    was known of its values, which is compared with what is known after the call."""

    tensor: Any
    version: int
    place: str
    known: object

    @property
    def root(self) -> str:
        """The place of the argument that it is, or is in."""
        return root_of(self.place)

    @property
    def path(self) -> str:
        """The argument path in a dump: input_args.1."""
        return argument_path(self.place)

    @property
    def place_after(self) -> str:
        """The place of its values after the call, for the name of their file: changed.1."""
        return f"changed.{self.place.partition('.')[2]}"


def root_of(place: str) -> str:
    """Return the place of the argument that a place is, or is in: "input.1" of "input.1.0"."""
    return ".".join(place.split(".", 2)[:2])


@functools.lru_cache(1 << 10)
def shared_field(place: str) -> str:
    """Return the field of an argument that lies in the memory of the one at a place."""
    return f', "shares": {quoted(argument_path(place))}'


@functools.lru_cache(1 << 12)
def silently_changed(type_name: str, framework: str) -> frozenset[str]:
    """Return the arguments that calls of an operator may change without a new version: "input.1" and
    "kwargs.running_mean". Those that change if another one is given get a new version."""
    row = CHANGES.of(type_name, framework)
    words = list(enumerate(row.split())) if row else []
    names = [(place, word[:-1]) for place, word in words if word.endswith("!")]
    return argument_places(names)


def argument_path(place: str) -> str:
    """Return the argument path in a dump of a place among the values of a call: input_args.1 of input.1."""
    kind, _, rest = place.partition(".")
    return f"{_ARGUMENTS[kind]}.{rest}"


def argument_places(arguments: Iterable[tuple[int, str]]) -> frozenset[str]:
    """Return the places of arguments, by position and by name."""
    return frozenset(
        each for place, name in arguments for each in (f"input.{place}", f"kwargs.{name}")
    )


def found_in(value: Any, kind: Kind) -> list[Any]:
    """Return the objects of a kind in a nested value, in the order in which they are written."""
    if COMPILED is not None:
        in_order: list[Any] = COMPILED.found_in(value, kind)
        return in_order
    found: list[Any] = []
    if type(value) is tuple:
        _collect(value, kind, found, 1)
    else:
        _collect((value,), kind, found, 0)
    return found


def _collect(values: Iterable[Any], kind: Kind, found: list[Any], depth: int) -> None:
    for each in values:
        if isinstance(each, kind):
            found.append(each)
        elif depth > _DEEPEST_TENSOR:
            continue
        elif isinstance(each, tuple | list):
            _collect(each, kind, found, depth + 1)
        elif isinstance(each, dict):
            _collect(each.values(), kind, found, depth + 1)
