"""The processes of a slot: the worker actor, its check process, and their messages."""
