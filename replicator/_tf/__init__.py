"""Private interfaces of TensorFlow, each behind a function of its own."""
