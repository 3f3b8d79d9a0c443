"""D4PG: distributed distributional deterministic policy gradients."""
