"""A diagnosis: comparison, search for births of NaN, search for the culprit and precheck in one run."""
