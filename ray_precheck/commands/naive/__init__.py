"""Calls under default kernels, under plain ones, and under single switches between the two."""
