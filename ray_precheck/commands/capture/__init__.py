"""The command `capture`; the hooks stand in `ray_precheck.capture`."""
