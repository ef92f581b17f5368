"""The roles of arguments: indices, probabilities, masks, ..., which bound their generated values."""
