"""The search for the operator to blame: in one run of all of its dumps, or as a part of a larger run."""
