"""What runs on a slot: the actor, its check process, and what goes between them."""
