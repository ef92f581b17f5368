"""Faults in real runs, at random moments: no row is lost, none is there twice."""
