"""One module for each command: its options, and the function that runs it. Listed in `cli.parser`."""
