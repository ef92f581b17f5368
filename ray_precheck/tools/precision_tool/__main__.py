"""`python -m ray_precheck.tools.precision_tool [WORD ...]`: without a word the prompt is opened."""

import sys
from collections.abc import Callable, Sequence

from ray_precheck.errors import PrecheckError, UsageError
from ray_precheck.foreign import printable
from ray_precheck.tools.precision_tool.training import WORDS as TRAINING

# The words of the command line that are none of the prompt, by name; each gets the words behind it.
WORDS: dict[str, Callable[[Sequence[str]], int]] = {**TRAINING}


def main(given: Sequence[str]) -> int:
    """Run a word, or open the prompt; return the exit code."""
    try:
        name, *rest = given or ("",)
        if name in WORDS:
            return WORDS[name](rest)
        # It takes half a second to load, which a command that trains does not need.
        from ray_precheck.tools.precision_tool import prompt

        if not given:
            return prompt.run_prompt()
        if prompt.is_word(name):
            return prompt.run_word(given)
        raise UsageError(
            f"{name} is no word of precision_tool; expected {', '.join(WORDS)}, or a word of the prompt, that"
            " is opened without any (`help` lists them)"
        )
    except PrecheckError as error:
        print(printable(f"precision_tool: error: {' '.join(str(error).split())}"), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
