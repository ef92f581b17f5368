"""The command: `ray-precheck` and `python -m ray_precheck`."""

import sys

from ray_precheck.processes import leave_working_directory


def main() -> int:
    """Run the command of this process, which imports nothing of the working directory; return its exit
    code."""
    leave_working_directory()
    from ray_precheck.cli import entry

    return entry()


if __name__ == "__main__":
    sys.exit(main())
