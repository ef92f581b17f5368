"""The sides of a call: the device under test or the dump's results, the bench, and reference implementations."""
