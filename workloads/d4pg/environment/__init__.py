"""The DeepMind Control Suite as actors and evaluations use it."""
