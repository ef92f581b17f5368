"""Reading of dump.json and of the captured tensors beside it."""
