"""One API call from start to end, without Ray: decode, build inputs, run both sides, judge."""

from ray_precheck.check.checker import Checker, CheckSettings

__all__ = ["CheckSettings", "Checker"]
