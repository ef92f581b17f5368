"""`python -m ray_precheck.tools.precision_tool [WORD ...]`: without a word the prompt is opened."""

import sys
from collections.abc import Callable, Sequence

from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.foreign import printable

# The words of the command line that are none of the prompt, by name; each gets the words behind it.
WORDS: dict[str, Callable[[Sequence[str]], int]] = {}


def main(given: Sequence[str]) -> int:
    """Run a word, or open the prompt; return the exit code."""
    # The prompt and its words take half a second to load, which a command that trains does not need.
    from ray_precheck.tools.precision_tool import prompt

    try:
        if not given:
            return prompt.run_prompt()
        name, *rest = given
        if name in WORDS:
            return WORDS[name](rest)
        if prompt.is_word(name):
            return prompt.run_word(given)
        raise UsageError(
            f"{name} is no word of precision_tool; without a word a prompt is opened, whose `help` lists all"
        )
    except PrecheckError as error:
        print(printable(f"precision_tool: error: {' '.join(str(error).split())}"), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
