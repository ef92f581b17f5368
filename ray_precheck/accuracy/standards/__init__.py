"""From numbers to a verdict: the standards, each in a module of its own."""

from ray_precheck.accuracy.standards.base import ROUNDING, Judgement, Standard

__all__ = ["ROUNDING", "Judgement", "Standard"]
