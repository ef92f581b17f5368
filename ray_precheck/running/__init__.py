"""One runner for every command that writes tables: from what the command gives to its report."""
