"""Random outputs: distributions, and what must hold of what is drawn from them. Pure."""
