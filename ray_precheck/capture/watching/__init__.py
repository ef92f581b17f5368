"""What `capture --watch` does once a step: its rules, its table, and which steps they have captured."""
