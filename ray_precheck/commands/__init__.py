"""A folder for each command, with everything that only it has."""
