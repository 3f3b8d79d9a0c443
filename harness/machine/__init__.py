"""Facts about this machine and its load."""
