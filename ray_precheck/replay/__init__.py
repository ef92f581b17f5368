"""Which calls of a dump are run again, planned how, and the runner that checks one on a slot."""
