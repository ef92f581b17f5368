"""Inputs of the APIs under test: generated from recorded statistics, or captured."""

# Names of the distributions: with the moments of the record, or between its extremes. Here, because options
# and their help, which load no NumPy, name them too.
RECORDED, UNIFORM = "recorded", "uniform"
DISTRIBUTIONS = (RECORDED, UNIFORM)
