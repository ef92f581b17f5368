"""The nouns of the project: frozen, without I/O, without torch, MindSpore or Ray."""
