"""Calls of code that is not ours and may raise anything: APIs under test, frameworks, Ray's start.

Comes in: an action. Goes out: what it returns, or what it raises, as a value. This and the edge of the
command line (`cli.command_line`) are the only places that catch every exception: what is raised here
is somebody else's, of any class, and is told in the row of a record or in a sentence.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def caught(action: Callable[[], T], *through: type[Exception]) -> tuple[T | None, Exception | None]:
    """Return what an action returns and None, or None and what it raises.

    Exceptions of the classes `through` go through, as do those that are no `Exception`.
    """
    try:
        return action(), None
    except through:
        raise
    except Exception as error:
        return None, error
