"""What is known of a framework without importing it."""
