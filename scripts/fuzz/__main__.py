"""Runs `python -m scripts.fuzz`."""

from scripts.fuzz.main import main

if __name__ == "__main__":
    raise SystemExit(main())
