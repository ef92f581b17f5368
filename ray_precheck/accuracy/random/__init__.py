"""Random outputs: the distributions, and the facts and statistics of draws from them. Pure."""
