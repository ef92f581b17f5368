"""Simulated histories of runs: the package's own scheduling under every trouble that a seed draws."""
