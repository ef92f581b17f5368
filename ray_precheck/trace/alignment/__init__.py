"""Which call of one capture is which of the other: nothing dropped, renumbered and fused calls found."""
