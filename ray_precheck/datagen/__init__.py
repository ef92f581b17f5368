"""Inputs of the APIs under test: generated from recorded statistics, or captured."""
