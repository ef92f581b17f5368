"""The precheck, over one dump or those of several ranks; the list of its calls; its summary."""
