"""The learner: networks, losses, updates."""
