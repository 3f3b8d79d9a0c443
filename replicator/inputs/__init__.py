"""Input pipelines: from an input function to per-replica batches."""
