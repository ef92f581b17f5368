"""Calls of foreign code, which may raise anything: APIs under test, frameworks, Ray's start.

Comes in: an action. Goes out: its result, or its exception as a value. This and the edge of the command
line (`cli.command_line`) are the only places that catch every exception: foreign code may raise any
class, and its text goes into the row of a record or into a sentence for the user.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def caught(action: Callable[[], T], *through: type[Exception]) -> tuple[T | None, Exception | None]:
    """Return the result of an action and None, or None and its exception.

    Exceptions of the classes `through`, and those that are no `Exception`, are not caught.
    """
    try:
        return action(), None
    except through:
        raise
    except Exception as error:
        return None, error
