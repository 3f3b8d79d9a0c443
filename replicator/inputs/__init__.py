"""From an input function to per-replica batches."""
