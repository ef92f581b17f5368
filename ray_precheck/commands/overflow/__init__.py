"""Where the first NaN or infinity was born, and what a replay of its call says."""
