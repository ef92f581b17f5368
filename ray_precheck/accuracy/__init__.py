"""Comparison of a tested output with the bench: pure functions on NumPy arrays."""
