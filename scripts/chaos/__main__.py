"""Runs `python -m scripts.chaos`."""

from scripts.chaos.main import main

if __name__ == "__main__":
    raise SystemExit(main())
