"""Runs `python -m scripts.npu_calls`."""

import sys

from scripts.npu_calls.main import main

if __name__ == "__main__":
    sys.exit(main())
