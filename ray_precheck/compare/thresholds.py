"""Limits of the standards, each with its source."""

# The rule of msprobe's precheck for MindSpore, the same for every dtype: cosine similarity above,
# largest absolute error below. 0.99 is mindstudio-probe 26.2, core/common/const.py, CompareConst.
# COS_THRESHOLD. Its MAX_ABS_ERR_THRESHOLD is 0.001 there; the contract of this project is the
# stricter 0.0001, so that what passes here passes there.
COSINE_LIMIT = 0.99
MAX_ABS_ERR_LIMIT = 0.0001

# An error of up to this many units in the last place of the output is rounding noise: a sum of n
# terms in one precision may be off by n/2 units, and blocked sums of a few thousand terms stay
# within a few (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
# It explains a verdict in its Message and never changes one.
ROUNDING_NOISE_ULP = 8.0
