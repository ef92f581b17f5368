"""The search for the operator to blame: in one run of all of its dumps, or as a part of a larger run."""

from ray_precheck.locating.report import LocationReport
from ray_precheck.locating.run import locate_captures, run_location
from ray_precheck.locating.search import LocationConfig

__all__ = ["LocationConfig", "LocationReport", "locate_captures", "run_location"]
