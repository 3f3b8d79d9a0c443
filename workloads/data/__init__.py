"""Image classification data through TFDS, shared by the workloads."""
