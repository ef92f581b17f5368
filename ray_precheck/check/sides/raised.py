"""Exceptions raised while a call is checked: their text as one line, and whether memory ran out.

Comes in: an exception. Goes out: text or bool. Called by `check.sides.attempt` for exceptions of an API,
and by `check.guard` for all others.
"""

_LONGEST_REASON = 300
# The messages of torch's allocators (CPU, CUDA, NPU) and MindSpore's when memory runs out.
_NO_MEMORY = ("can't allocate memory", "out of memory", "Allocate memory failed", "bad_alloc")


class OutOfMemory(Exception):
    """An allocation failed on either side; the machine is too small, the API may be right."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception means that an allocation failed."""
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    text = str(error).lower()
    return any(sign.lower() in text for sign in _NO_MEMORY)


def describe(error: Exception | None) -> str:
    """Return an exception as one line: its type and the first lines of its text."""
    if error is None:
        return "unknown error"
    text = " ".join(str(error).split("\n---", 1)[0].split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."
