"""Tools of others under their old names: `python -m ray_precheck.tools.NAME`; README.md has the rest."""
