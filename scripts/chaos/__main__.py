"""Runs `python -m scripts.chaos`."""

import sys

from scripts.chaos.main import main

if __name__ == "__main__":
    sys.exit(main())
