"""The exit codes and their meaning. Read by every command.

Comes in: nothing. Goes out: the codes, and the sentences about them that --help prints.
"""

PASSED, IN_ERROR, UNUSABLE, STOPPED, NOTHING_CHECKED = 0, 1, 2, 3, 4

# From the worst to the best.
_BY_BADNESS = (STOPPED, IN_ERROR, UNUSABLE, NOTHING_CHECKED, PASSED)

EXIT_CODES = (
    "exit codes: 0 nothing that was checked is in error, 1 some API is in error, 2 wrong usage or"
    " input, 3 stopped, resumable, 4 finished, but nothing could be checked"
)
COMPARE_EXIT_CODES = (
    "exit codes: 0 none in error, 1 some output is in error, 2 wrong usage or input, 4 nothing could"
    " be compared"
)


def worst_code(*codes: int) -> int:
    """Return the exit code of several runs: that of the worst one."""
    return min(codes, key=_BY_BADNESS.index)
