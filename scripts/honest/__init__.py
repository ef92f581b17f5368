"""Honest programs: what a capture of each holds, beside what a recorder of its own saw."""
