"""What developers run: `python -m scripts.NAME`, from the root of a checkout."""
