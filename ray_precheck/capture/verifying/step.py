"""One traced step, with its capture or without.

Comes in: when the step begins and ends, and what is seen of it. Goes out: its `StepTrace`, made of digests
that are equal where every bit is: of what the step computed, of random states and, in a watched run, of what
each operator gets and gives. The tracing of each framework derives its own probes, steps and digests from
these, and says how the bytes of its tensors are read.
"""

import hashlib
import itertools
import random
import sys
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ray_precheck.capture.probe import StepProbe
from ray_precheck.capture.recording.arguments import found_in
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.verdict import NOTHING, Moment, Sight, StepTrace, TracedRun

_BYTES = 8
_PLAIN = (bool, int, float, complex, str)
# What operators of these names give is whatever the memory held before.
_UNFILLED = ("empty", "resize")
# Chooses no call: a watched run has the hooks of the capture, and none of its records.
_NO_CALL = ("name-regex((?!))",)
Restore = Callable[[], object]


class Digests(ABC):
    """Takes digests of the values of one framework."""

    tensor: ClassVar[type[Any]]

    @abstractmethod
    def raw(self, tensor: Any) -> Any:
        """Return the bytes of a tensor, None for one that cannot be read in this process."""

    @abstractmethod
    def states(self) -> dict[str, Any]:
        """Return the states of the framework's random generators by their names."""

    def of(self, value: Any) -> str:
        """Return the digest of the tensors and plain values in a nested value.

        Of a tensor that cannot be read it has the dtype and shape.
        """
        found = hashlib.blake2b(digest_size=_BYTES)
        for leaf in found_in(value, (self.tensor, *_PLAIN)):
            if isinstance(leaf, self.tensor):
                found.update(f"{leaf.dtype} {tuple(leaf.shape)};".encode())
                raw = self.raw(leaf)
                if raw is not None:
                    found.update(raw)
            else:
                found.update(f"{type(leaf).__name__} {leaf!r};".encode())
        return found.hexdigest()

    def of_random(self) -> str:
        """Return one digest of the states of the framework's generators, taken behind each operator."""
        return self.of(self.states())

    def of_all_random(self) -> dict[str, str]:
        """Return the digests of the states of the generators of the framework, numpy and Python."""
        numpy = sys.modules.get("numpy")
        others = {
            "the random state of numpy": numpy and numpy.random.get_state(),
            "the random state of Python": random.getstate(),
        }
        found = {name: self.of(state) for name, state in self.states().items()}
        for name, state in others.items():
            text = repr(_words(state)).encode()
            found[name] = hashlib.blake2b(text, digest_size=_BYTES).hexdigest()
        return found


def _words(state: Any) -> Any:
    """Return the state of numpy's generator with its array written out, that of others as it is."""
    if isinstance(state, tuple) and hasattr(state[1], "tobytes"):
        return (state[0], state[1].tobytes(), *state[2:])
    return state


class OperatorDigests:
    """Takes digests at each operator, which name the first one that differs between two runs.

    It stands between the hooks of a watched step and the recorder. `nodes_of` returns the nodes of autograd
    behind what an operator gave.
    """

    def __init__(self, digests: Digests, nodes_of: Callable[[Any], list[Any]]) -> None:
        self.sights: list[Sight] = []
        self._digests = digests
        self._nodes_of = nodes_of
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)

    def around(self, call: SeenCall, make: Callable[[], Any], *, is_under_way: bool = False) -> Any:
        """Take digests of what a call gets and, behind its record, of what it got and gave, unless that may
        still be underway."""
        name, args, kwargs = call.name, call.args, call.kwargs
        key = f"{name.key}.{next(self._counts[name.key])}"
        forward = f"{key}.forward"
        # What is overwritten may hold anything before.
        read = {each: value for each, value in kwargs.items() if each != "out"}
        self.note(forward, Moment.GOT, (args[1:] if name.in_place else args, read))
        result = make()
        if not is_under_way and not any(word in name.name for word in _UNFILLED):
            self.note(forward, Moment.GAVE, (args, kwargs, result))
        self.sights.append(Sight(forward, Moment.RANDOM.value, self._digests.of_random()))
        self._watch(f"{key}.backward", args[0] if name.returns_nothing else result)
        return result

    def region(self, call: SeenCall, result: Any) -> None:
        """Take a digest of what a compiled function got and gave."""
        key = call.name.key
        value = (call.args, call.kwargs, result)
        self.note(f"{key}.{next(self._counts[key])}.forward", Moment.GAVE, value)

    def _watch(self, key: str, output: Any) -> None:
        """Take a digest of the gradients of the nodes behind the outputs, behind the recorder's hooks."""

        def hook(passed_on: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
            self.note(key, Moment.GAVE, (arrived, passed_on))

        for node in self._nodes_of(output):
            if node is not None:
                node.register_hook(hook)

    def note(self, key: str, moment: Moment, value: Any) -> None:
        """Take the digest of a value."""
        self.sights.append(Sight(key, moment.value, self._digests.of(value)))


class TracedStep:
    """The step as the session sees it; `ended` takes its trace."""

    dark: dict[str, object] | None = None
    digests: ClassVar[Digests]

    def __init__(self, captured: StepProbe | None, ended: Callable[[StepTrace], None]) -> None:
        self.scope = Scope((), ()) if captured is None else captured.scope
        self._captured = captured
        self._ended = ended
        self._trace = StepTrace()
        self._parameters: dict[str, weakref.ref[Any]] = {}
        self._names: dict[int, str] = {}
        self._optimizers: list[int] = []

    @property
    def records(self) -> int:
        """How many records were written so far."""
        return 0 if self._captured is None else self._captured.records

    def pause(self) -> None:
        """Take the hooks of the capture away."""
        if self._captured is not None:
            self._captured.pause()

    def resume(self) -> None:
        """Put the hooks of the capture on again."""
        if self._captured is not None:
            self._captured.resume()

    def finish(self, cut_short: str = "") -> None:
        """End the capture of the step; then take what the step came to."""
        if self._captured is not None:
            self._captured.finish(cut_short)
        self.collect(self._trace)
        self._trace.records = self.records
        self._ended(self._trace)

    def abandon(self) -> None:
        """Take nothing, in a process that was forked, and for a step in which nothing happened."""
        if self._captured is not None:
            self._captured.abandon()

    def took(self, value: Any, error: Exception | None = None) -> None:
        """Take what a function gave that runs the step, or what it raised."""
        if error is not None:
            self._trace.raised = f"{type(error).__name__}: {error}"
        if value is not None:
            self._trace.returned["what the step returned"] = self.digests.of(value)

    def gave(self, named: Iterable[tuple[str, Any]], output: Any) -> None:
        """Take what the model gave, whose parameters are `named`."""
        self.add(named)
        outputs = self._trace.outputs
        outputs[f"output {len(outputs)} of the model"] = self.digests.of(output)

    def updates(self, optimizer: Any, parameters: Sequence[Any], gradients: Iterable[Any]) -> None:
        """Take the gradients with which an optimizer steps, in the order of its parameters."""
        if id(optimizer) not in self._optimizers:
            self._optimizers.append(id(optimizer))
        number = self._optimizers.index(id(optimizer))
        self.add(
            (f"parameter {place} of optimizer {number}", each)
            for place, each in enumerate(parameters)
        )
        for parameter, gradient in zip(parameters, gradients, strict=False):
            name = self._names[id(parameter)]
            self._trace.gradients[f"the gradient of {name}"] = self.digest_if_any(gradient)

    def digest_if_any(self, gradient: Any) -> str:
        """Return the digest of a gradient that may not be there."""
        return NOTHING if gradient is None else self.digests.of(gradient)

    def add(self, named: Iterable[tuple[str, Any]]) -> None:
        """Take note of parameters, which are looked at when the step has ended."""
        for name, parameter in named:
            known = self._names.get(id(parameter))
            if known is None or self._parameters[known]() is not parameter:
                self._names[id(parameter)] = name
                self._parameters[name] = weakref.ref(parameter)

    def alive(self) -> Iterator[tuple[str, Any]]:
        """Yield the parameters that are there still."""
        for name, reference in self._parameters.items():
            parameter = reference()
            if parameter is not None:
                yield name, parameter

    def collect(self, trace: StepTrace) -> None:
        """Take the parameters behind the step, and the random states."""
        for name, parameter in self.alive():
            trace.weights[f"{name} after the step"] = self.digests.of(parameter)
        trace.random = self.digests.of_all_random()


class TracingProbe(ABC):
    """The probe of a framework, with a trace of each step; `trace` is that of the last one.

    It stands before the class of the probe among the bases of a framework's own class. `models` and
    `optimizers` are the classes of these, and what a sentence calls them.
    """

    models: ClassVar[tuple[tuple[type, ...], str]]
    optimizers: ClassVar[tuple[tuple[type, ...], str]]

    def __init__(self, run: TracedRun) -> None:
        super().__init__()
        self.trace: StepTrace | None = None
        self.run = run
        self.traced: Any = None
        self.operators: OperatorDigests | None = None

    @abstractmethod
    def ranks_here(self) -> int:
        """Return how many ranks run on this machine and wait for each other."""

    @abstractmethod
    def traced_step(self, captured: StepProbe | None, models: Any) -> TracedStep:
        """Return a step of the framework."""

    @staticmethod
    @abstractmethod
    def saved_state(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Restore]:
        """Return what puts the state from which a step starts back as it is now, also several times."""

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> TracedStep:
        """Begin a step, and its capture where the run has one."""
        captured: StepProbe | None = None
        if self.run is not TracedRun.PLAIN:
            if not self.run.has_records:
                settings = replace(settings, chosen=_NO_CALL, scope=())
            captured = super().begin(settings, folder, models, on_failure)  # type: ignore[misc]
        traced = self.traced = self.traced_step(captured, models)
        return traced

    def trace_ended(self, trace: StepTrace) -> None:
        """Take the trace of a step that has ended."""
        if self.operators is not None:
            trace.sights = list(self.operators.sights)
        self.trace, self.traced = trace, None


def other_random_states() -> Iterator[Restore]:
    """Yield what puts the states of the generators of Python and numpy back."""
    yield partial(random.setstate, random.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield partial(numpy.random.set_state, numpy.random.get_state())
