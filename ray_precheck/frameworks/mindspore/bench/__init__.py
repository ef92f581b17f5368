"""Which of torch's operators are the bench of MindSpore's."""
