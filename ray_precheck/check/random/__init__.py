"""The check of calls that draw random numbers: what is drawn, and from which distribution."""
