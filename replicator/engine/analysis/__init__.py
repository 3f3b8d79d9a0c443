"""Analysis of a traced step: placement, plan of collectives, shares of its update."""
