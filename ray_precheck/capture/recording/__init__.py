"""What the recorders of all frameworks share: which calls have records, what a record says, what had none."""
