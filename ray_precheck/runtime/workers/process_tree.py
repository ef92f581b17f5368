"""Which processes descend from a check process: what they use is used by the record that it is at.

Comes in: a process id. Goes out: process ids. Called by a check process, for its limit of memory,
and by the one who watches it, for its time. Linux with /proc alone; elsewhere none are seen.
"""

import contextlib
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started, and of those that these have.

    One that ends meanwhile may be missing (proc(5), /proc/pid/task/tid/children).
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children: list[int] = []
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children.extend(map(int, path.read_text().split()))
        found += children
        waiting += children
    return found
