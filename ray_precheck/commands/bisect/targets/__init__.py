"""What is bisected: a folder for each target, found by its entry point."""
