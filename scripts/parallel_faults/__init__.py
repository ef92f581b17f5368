"""Faults between ranks: trainings in many layouts under gloo, made wrong in one place each, and judged."""
