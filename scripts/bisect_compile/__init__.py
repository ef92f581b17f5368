"""Faults in torch.compile and how they are found: `python -m scripts.bisect_compile`."""
