"""What a capture computes of a tensor's values beside its statistics, whatever the framework."""
