"""Runs `python -m scripts.coverage`."""

import sys

from scripts.coverage.main import main

if __name__ == "__main__":
    sys.exit(main())
