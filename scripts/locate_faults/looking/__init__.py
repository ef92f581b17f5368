"""What each way to look says of a capture, and the tables of that."""
