"""The embedded TFDS data set of TensorFlow's own Python files."""
