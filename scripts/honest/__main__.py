"""Run the honest programs: `python -m scripts.honest`."""

import sys

from scripts.honest.main import main

if __name__ == "__main__":
    sys.exit(main())
