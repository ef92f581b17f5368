"""Searches for what makes a difference; pure: questions out, answers in."""
