"""One module per way of running replicas."""
