"""The search for births of NaN and infinity as a job, and calls that overflowed run again as another."""
