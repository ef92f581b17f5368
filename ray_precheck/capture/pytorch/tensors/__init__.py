"""One tensor of PyTorch in a record: its text, its statistics, its sketch and its file."""
