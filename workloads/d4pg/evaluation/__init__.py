"""Episodes without exploration noise, in a separate process."""
