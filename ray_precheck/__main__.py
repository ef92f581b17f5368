"""`python -m ray_precheck` is the same as the command `ray-precheck`."""

import sys

from ray_precheck.cli import entry

if __name__ == "__main__":
    sys.exit(entry())
