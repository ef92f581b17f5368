"""Kernels that are wrong only under a condition, against the precheck: hits and finds of each kind."""
