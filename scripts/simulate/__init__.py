"""Large clusters in simulated time."""
