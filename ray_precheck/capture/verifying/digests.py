"""Digests of what operators get and give, and of the states of random generators.

Comes in: nested values. Goes out: texts that are equal where every bit is. Called by the tracing of each
framework, which says how the bytes of its tensors are read.
"""

import hashlib
import itertools
import random
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.verifying.trace import Moment, Sight

_DEEPEST = 10
_BYTES = 8
_PLAIN = (bool, int, float, complex, str)
# What operators of these names give is whatever the memory held before.
_UNFILLED = ("empty", "resize")


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
        for leaf in self._leaves(value, 0):
            if isinstance(leaf, self.tensor):
                found.update(f"{leaf.dtype} {tuple(leaf.shape)};".encode())
                raw = self.raw(leaf)
                if raw is not None:
                    found.update(raw)
            else:
                found.update(f"{type(leaf).__name__} {leaf!r};".encode())
        return found.hexdigest()

    def _leaves(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (self.tensor, *_PLAIN)):
            yield value
        elif depth > _DEEPEST:
            return
        elif isinstance(value, dict | tuple | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from self._leaves(each, depth + 1)

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
