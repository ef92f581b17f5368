"""Runs `python -m scripts.histories`."""

import sys

from scripts.histories.search import main

if __name__ == "__main__":
    sys.exit(main())
