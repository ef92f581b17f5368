"""The standard `auto`: an output is an error if no honest implementation is so far off."""
