"""The files that `--junit` and `--json` write."""
