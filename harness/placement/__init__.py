"""Which processes a trial has, and which cores and devices these get."""
