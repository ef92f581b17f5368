"""`python -m ray_precheck.tools.precision_tool WORD ...`."""

import sys
from collections.abc import Callable, Sequence

from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.foreign import printable
from ray_precheck.tools.precision_tool.training import WORDS as TRAINING

# The words of the command line that are none of the prompt, by name; each gets the words behind it.
WORDS: dict[str, Callable[[Sequence[str]], int]] = {**TRAINING}


def main(given: Sequence[str]) -> int:
    """Run a word; return the exit code."""
    try:
        name, *rest = given or ("",)
        if name not in WORDS:
            raise UsageError(
                f"{name or 'nothing'} is no word of precision_tool; expected {', '.join(WORDS)}"
            )
        return WORDS[name](rest)
    except PrecheckError as error:
        print(printable(f"precision_tool: error: {' '.join(str(error).split())}"), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
