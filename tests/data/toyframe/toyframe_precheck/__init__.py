"""What ray_precheck must know to check toyframe."""
