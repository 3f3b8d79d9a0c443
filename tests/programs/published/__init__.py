"""Programs as tutorials publish them, on small data, a function of a strategy."""
