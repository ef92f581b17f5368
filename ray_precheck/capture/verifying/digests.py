"""Digests of what operators get and give, and of random states that belong to no framework.

Comes in: nested values. Goes out: texts that are equal where every bit is. Called by the digests of each
framework, which says how the bytes of its tensors are read.
"""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

_DEEPEST = 10
_BYTES = 8
_PLAIN = (bool, int, float, complex, str)


class Digests:
    """Takes digests; `raw` returns the bytes of a tensor, None for one without memory in this process."""

    def __init__(self, tensor: type[Any], raw: Callable[[Any], Any]) -> None:
        self._tensor = tensor
        self._leaf = (tensor, *_PLAIN)
        self._raw = raw

    def of(self, value: Any) -> str:
        """Return the digest of the tensors and plain values in a nested value."""
        found = hashlib.blake2b(digest_size=_BYTES)
        for leaf in self._leaves(value, 0):
            if isinstance(leaf, self._tensor):
                found.update(f"{leaf.dtype} {tuple(leaf.shape)};".encode())
                raw = self._raw(leaf)
                if raw is not None:
                    found.update(raw)
            else:
                found.update(f"{type(leaf).__name__} {leaf!r};".encode())
        return found.hexdigest()

    def _leaves(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, self._leaf):
            yield value
        elif depth > _DEEPEST:
            return
        elif isinstance(value, dict):
            for each in value.values():
                yield from self._leaves(each, depth + 1)
        elif isinstance(value, tuple | list):
            for each in value:
                yield from self._leaves(each, depth + 1)


def other_random_digests() -> dict[str, str]:
    """Return the digests of the states of the generators of numpy and Python."""
    numpy = sys.modules.get("numpy")
    return {
        name: hashlib.blake2b(repr(_words(state)).encode(), digest_size=_BYTES).hexdigest()
        for name, state in (
            ("the random state of numpy", numpy and numpy.random.get_state()),
            ("the random state of Python", random.getstate()),
        )
    }


def _words(state: Any) -> Any:
    """Return the state of numpy's generator with its array written out, that of others as it is."""
    if isinstance(state, tuple) and hasattr(state[1], "tobytes"):
        return (state[0], state[1].tobytes(), *state[2:])
    return state
