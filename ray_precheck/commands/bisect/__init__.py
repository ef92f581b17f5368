"""Which pass, switch or operator makes the result wrong: the smallest set, found by trials."""
