"""Networks through whose features images are compared."""
