"""Pieces in which arrays are read."""

# Arrays are worked on in pieces of this many elements, so that temporary copies stay small.
CHUNK_ELEMENTS = 1 << 18
