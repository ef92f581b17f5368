"""The sides of a call: the device under test or the dump, the bench, and reference implementations."""
