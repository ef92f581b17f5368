"""One API call from start to end, without Ray: decode, build inputs, run both sides, judge.

Import `check.checker` only where the frameworks may be loaded: in the workers.
"""
