"""What is checked, in which order and at what cost."""
