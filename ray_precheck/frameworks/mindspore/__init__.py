"""MindSpore under test."""
