"""Which worker runs what: events in, commands out. Pure: no Ray, no clock, no I/O."""
