"""See the package."""

import sys

from scripts.locate_faults.main import main

sys.exit(main())
