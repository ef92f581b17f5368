"""`python -m ray_precheck` is the same as the command `ray-precheck`."""

import sys

from ray_precheck.cli import main

if __name__ == "__main__":
    sys.exit(main())
