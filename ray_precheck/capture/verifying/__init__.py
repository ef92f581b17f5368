"""The self-check of a capture: one step with and one without it, bit by bit.

Comes in: a script, or a step as a function. Goes out: a verdict. Called by `capture --verify`, and by users
as `ray_precheck.capture.verify`.
"""
