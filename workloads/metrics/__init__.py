"""Scores of generated images, and the networks that extract features for them."""
