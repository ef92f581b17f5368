"""Runs `python -m scripts.bench_verdicts`."""

import sys

from scripts.bench_verdicts.main import main

if __name__ == "__main__":
    sys.exit(main())
