"""Verifying that a capture of MindSpore changes nothing; MindSpore's half of `capture.verifying`."""
