"""Compares the verdicts of a cheaper bench with those of the exact one, on planted faults and honest results."""
