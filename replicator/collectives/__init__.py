"""Collectives that users call in a step, and layers built of them."""
