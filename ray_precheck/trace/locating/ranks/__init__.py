"""What the ranks of a run tell of each other: their collectives, and errors that came through them."""
