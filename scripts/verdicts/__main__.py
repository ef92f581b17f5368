"""Runs `python -m scripts.verdicts`."""

import sys

from scripts.verdicts.main import main

if __name__ == "__main__":
    sys.exit(main())
