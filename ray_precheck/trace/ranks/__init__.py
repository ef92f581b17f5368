"""The ranks of one run against each other: what must agree between them, and what must not."""
