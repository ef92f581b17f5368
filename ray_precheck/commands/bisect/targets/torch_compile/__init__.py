"""The target `torch-compile`: which decomposition, graph pass, lowering or code generator does it."""
