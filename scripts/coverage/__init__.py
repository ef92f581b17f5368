"""Which operators of the frameworks are checked, and how: the table in COVERAGE.md."""
