"""Own errors where nothing was replayed: estimated from statistics and sketches."""
