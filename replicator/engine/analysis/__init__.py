"""What a traced step does: placement, plan of its collectives, shares of its update."""
