"""Two result files of the precheck, compared."""
