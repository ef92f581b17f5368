"""What measures speed, memory and scale."""
