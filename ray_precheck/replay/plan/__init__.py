"""The calls to check, their order and their estimated cost."""
