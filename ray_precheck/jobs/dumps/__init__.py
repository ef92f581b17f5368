"""Jobs whose pieces are whole dumps: one, or one of each run that is compared."""
