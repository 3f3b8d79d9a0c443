"""Facts about this machine and how quiet it is."""
