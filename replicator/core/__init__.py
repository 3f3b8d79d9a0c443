"""Where replicas are, what a step sees, and checks of what users pass."""
