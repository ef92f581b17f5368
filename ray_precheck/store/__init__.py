"""The files on disk: the two CSV files, their repair, and the tensors of failing outputs."""
