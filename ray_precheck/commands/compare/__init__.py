"""The comparison of two captures as a job: which dumps, its plan, its payloads, rows, and forks."""
