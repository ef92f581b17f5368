"""Captures of other tools, read as ours: one module for each format, found by what is in the folder."""
