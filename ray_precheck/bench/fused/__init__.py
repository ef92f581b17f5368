"""References of fused operators, written from their published formulas.

`table` says which operator has which; the families know nothing of names and overloads.
"""
