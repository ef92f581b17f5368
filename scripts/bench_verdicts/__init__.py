"""Compares the verdicts of a cheaper bench with those of the exact one, on faults and honest results."""
