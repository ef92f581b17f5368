"""The closing lines of a precheck, and what other programs read: JUnit, JSON, data frames."""
