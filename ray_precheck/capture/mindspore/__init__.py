"""Capturing MindSpore in PyNative mode; ./README.md says how."""
