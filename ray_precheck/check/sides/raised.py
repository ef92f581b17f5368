"""Exceptions raised while a call is checked: their text as one line, and whether memory ran out.

Comes in: an exception. Goes out: text or bool. Called by `check.sides.attempt` for exceptions of an API,
and by `check.guard` for all others.
"""

import re

_LONGEST_REASON = 300
# MindSpore's name of a node in its graph, whose numbers count the calls that came before.
_NODE = re.compile(r" node: @\w+:CNode_\d+.*")
# Parts of what torch's allocators (CPU, CUDA, NPU), MindSpore's (CPU, Ascend) and CANN (its error EL0004)
# say when memory runs out. `scripts.npu_calls` seeks them in the releases of torch_npu and MindSpore.
_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Allocate memory failed",
    "Memory not enough",
    "memory isn't enough",
    "device memory failed",
    "workspace memory failed",
    "physical memory failed",
    "Failed to allocate memory",
)


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
    text = _NODE.sub("", " ".join(_first_words(str(error)).split()))
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def _first_words(text: str) -> str:
    """Return a text up to its first rule of dashes, as MindSpore draws them, or the section behind.

    A missing kernel's text begins with a heading between two rules; then both are the first words.
    """
    heading, *sections = [
        part for part in re.split(r"(?:^|\n)-{3,}[^\n]*", text) if part.strip()
    ] or [""]
    if text.lstrip().startswith("---") and heading.strip().startswith("- ") and sections:
        return f"{heading.strip().removeprefix('- ')} {sections[0]}"
    return heading
