"""The files of a capture: the log that is written while a step runs, and the dump that is made of it."""
