"""One call of a dump as one portable file."""
