"""What is kept on disk: the two CSV files, their repair, and the tensors of failing outputs."""
