"""Which tensors a call has changed: the field `changed` of its record.

Comes in: the tensors that the call got, noted while its inputs were written. Goes out: those that it has
changed, each with the path of the argument that it is. Called by the recorders of both frameworks.

A new version tells that a tensor was changed, but kernels change tensors without one (the running
statistics of batch_norm): which operators do is known (`operators.effects`). Of both the statistics say
whether the values are others; a call that changes a tensor and puts it back has changed nothing.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from ray_precheck.operators.effects import CHANGES

_ROOTS = (("input.", "input_args."), ("kwargs.", "input_kwargs."))


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
        return ".".join(self.place.split(".", 2)[:2])

    @property
    def path(self) -> str:
        """The argument path in a dump: input_args.1."""
        return next(
            (
                f"{path}{self.place[len(root) :]}"
                for root, path in _ROOTS
                if self.place.startswith(root)
            ),
            self.place,
        )

    @property
    def place_after(self) -> str:
        """The place of its values after the call, for the name of their file: changed.1."""
        return f"changed.{self.place.partition('.')[2]}"


# Given(tensor, ...) takes three times as long as tuple.__new__, and each tensor of each call is noted.
given_of = functools.partial(tuple.__new__, Given)


@functools.lru_cache(1 << 12)
def silently_changed(type_name: str, framework: str) -> frozenset[str]:
    """Return the arguments that calls of an operator may change without a new version: "input.1" and
    "kwargs.running_mean". Those that change if another one is given get a new version."""
    row = CHANGES.of(type_name, framework)
    words = list(enumerate(row.split())) if row else []
    names = [(place, word[:-1]) for place, word in words if word.endswith("!")]
    return argument_places(names)


def argument_places(arguments: Iterable[tuple[int, str]]) -> frozenset[str]:
    """Return the places of arguments, by position and by name."""
    return frozenset(
        each for place, name in arguments for each in (f"input.{place}", f"kwargs.{name}")
    )
