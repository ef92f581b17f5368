"""Runs `python -m scripts.fuzz`."""

import sys

from scripts.fuzz.main import main

if __name__ == "__main__":
    sys.exit(main())
