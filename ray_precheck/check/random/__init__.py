"""The check of calls that draw random numbers: the draws, and their distributions."""
