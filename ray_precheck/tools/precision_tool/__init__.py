"""Ascend's precision_tool for TensorFlow, by its words: `python -m ray_precheck.tools.precision_tool`."""
