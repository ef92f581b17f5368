"""Sentences about a dump that are no errors: the script goes on. Called by the hooks."""

import sys


def tell_user(text: str) -> None:
    """Print a sentence on stderr."""
    print(f"ray-precheck hooks: {text}", file=sys.stderr, flush=True)
