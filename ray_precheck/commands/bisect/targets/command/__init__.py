"""Any command, whose exit code judges: `ray-precheck bisect run`."""
