"""How two captured tensors, or their statistics, differ; the columns of the comparison, and its verdicts."""
