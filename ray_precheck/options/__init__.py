"""The options of the command line, declared with the fields that hold their values, in groups."""
