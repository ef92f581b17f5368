"""Cheap pickling of the values that go from process to process for every record.

A frozen dataclass with slots is pickled by a method in Python that asks for its fields each time; it
took three times as long as this. Called where such classes are defined.
"""

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def pickled_by_position(cls: type[T]) -> type[T]:
    """Pickle instances of a dataclass with two fields or more as a call with all of its fields."""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values: Callable[[object], tuple[Any, ...]] = attrgetter(*names)

    def reduce(self: T) -> tuple[type[T], tuple[Any, ...]]:
        return cls, values(self)

    cls.__reduce__ = reduce  # type: ignore[assignment,method-assign]
    return cls
