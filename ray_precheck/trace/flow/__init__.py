"""The data flow of a step: which call made a value, which took it, and which calls of several ranks meet."""
