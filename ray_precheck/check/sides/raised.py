"""What is raised while a call is checked: what it means, and how it is said in one line.

Comes in: an exception. Goes out: text, or whether memory ran out. Called by `check.sides.attempt` for
what an API raises, and by `check.guard` for everything else.
"""

_LONGEST_REASON = 300
# How torch's allocators (CPU, CUDA, NPU) and MindSpore's say that there is no memory left.
_NO_MEMORY = ("can't allocate memory", "out of memory", "Allocate memory failed", "bad_alloc")


class OutOfMemory(Exception):
    """An allocation failed on either side: it says something of the machine, not of the API."""


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
