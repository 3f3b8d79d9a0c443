"""Variables and their copies: kinds, owners, values that must stay equal."""
