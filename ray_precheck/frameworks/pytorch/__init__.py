"""PyTorch under test."""
