"""Private interfaces of TensorFlow, each wrapped in its own function."""
