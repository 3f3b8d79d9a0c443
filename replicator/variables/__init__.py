"""Variables and their copies: kinds, owners, and how copies stay identical."""
