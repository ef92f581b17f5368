"""The standard `auto`: an error is what no honest implementation makes."""
