"""Runs `python -m scripts.simulate`."""

import sys

from scripts.simulate.main import main

if __name__ == "__main__":
    sys.exit(main())
