"""Which operator is to blame: the data flow of a capture, what each record adds to an error, and ranks."""
