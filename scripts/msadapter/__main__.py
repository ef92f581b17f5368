"""Command line: `python -m scripts.msadapter`."""

from scripts.msadapter.main import main

raise SystemExit(main())
