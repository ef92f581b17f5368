"""Command line: `python -m scripts.mutants`."""

from scripts.mutants.main import main

raise SystemExit(main())
