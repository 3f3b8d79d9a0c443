"""Collectives that users call in a step, and layers that use them."""
