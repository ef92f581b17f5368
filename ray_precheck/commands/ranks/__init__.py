"""The ranks of one run against each other, without a golden run."""
