"""What the exit code of a command means. Read by every command.

Comes in: nothing. Goes out: the codes, and the sentences about them that --help prints.
"""

PASSED, IN_ERROR, UNUSABLE, STOPPED = 0, 1, 2, 3

EXIT_CODES = (
    "exit codes: 0 all passed, 1 some API is in error, 2 wrong usage or input, 3 stopped, resumable"
)
COMPARE_EXIT_CODES = (
    "exit codes: 0 none in error, 1 some output is in error, 2 wrong usage or input"
)
