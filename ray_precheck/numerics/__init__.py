"""What is computed with numbers, whatever the room: rounding, spacing, pieces, sums, statistics."""
