"""Captures of models with a fault in each, and the truth of what it moves."""
