"""`python -m scripts.parallel_faults`."""

import sys

from scripts.parallel_faults.main import main

sys.exit(main())
