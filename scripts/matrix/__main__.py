"""Command line: `python -m scripts.matrix`."""

from scripts.matrix.main import main

raise SystemExit(main())
