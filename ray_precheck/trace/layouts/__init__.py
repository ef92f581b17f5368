"""Two runs of other parallel layouts, made into two captures whose tensors are whole."""
