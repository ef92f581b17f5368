"""A look into a capture: one word of the command line, or a shell with all of them."""
