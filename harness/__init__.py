"""Plans, runs and records scaling studies; the parent never imports TensorFlow."""
