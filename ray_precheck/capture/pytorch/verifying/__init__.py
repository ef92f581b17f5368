"""The self-check of captures of PyTorch: traces of a step, and the state that it starts from."""
