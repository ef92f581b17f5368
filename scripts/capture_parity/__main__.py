"""See the package."""

import sys

from scripts.capture_parity.main import main

sys.exit(main())
