"""What `capture --watch` does once a step: its rows, and which steps rules have captured."""
