"""The rules that make verdicts of the rows of an operator; one module for each standard."""
