"""Networks whose features are used to compare images."""
