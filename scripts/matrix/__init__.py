"""The package in environments of other versions of Python, the frameworks, NumPy and Ray."""
