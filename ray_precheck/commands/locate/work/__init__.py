"""Locating as jobs: calls replayed, pairs of dumps searched by statistics, collectives recomputed."""
