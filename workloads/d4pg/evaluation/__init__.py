"""Episodes without exploration noise, in a process of their own."""
