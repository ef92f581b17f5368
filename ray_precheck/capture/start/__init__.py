"""A folder for the front of PYTHONPATH: its `sitecustomize` starts captures. Nothing else stands here."""
