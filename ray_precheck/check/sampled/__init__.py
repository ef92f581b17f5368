"""The check of large products by a sample of their results, and by sums of all of them."""
