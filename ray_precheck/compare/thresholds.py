"""Limits of the standards, each with its source."""

# msprobe, precheck of MindSpore: an output passes when its cosine similarity is larger and its
# largest absolute error smaller than these (mindstudio-probe, mindspore/api_accuracy_checker:
# CosineSimilarityCompare and MaxAbsErrorCompare; the same numbers for every dtype).
COSINE_LIMIT = 0.99
MAX_ABS_ERR_LIMIT = 0.0001

# An error of up to this many units in the last place of the output is rounding noise: a sum of n
# terms in one precision may be off by n/2 units, and blocked sums of a few thousand terms stay
# within a few (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
# It explains a verdict in its Message and never changes one.
ROUNDING_NOISE_ULP = 8.0
