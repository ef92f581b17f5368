"""Trainings on which the rules of `capture --watch` are tried."""
