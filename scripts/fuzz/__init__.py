"""Hostile dumps: whatever they hold, the package answers with rows and sentences."""
