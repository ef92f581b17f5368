"""The updates that optimizers and gradient scalers make in a captured step."""
