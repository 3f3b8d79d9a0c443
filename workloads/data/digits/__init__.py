"""The embedded TFDS data set of handwritten digits."""
