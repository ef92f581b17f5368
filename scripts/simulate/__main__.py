"""Runs `python -m scripts.simulate`."""

from scripts.simulate.main import main

if __name__ == "__main__":
    raise SystemExit(main())
