"""Figures of how good generated images are, and the networks they look through."""
