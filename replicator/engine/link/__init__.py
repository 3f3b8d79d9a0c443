"""From collectives of all replicas to the ops that carry them out."""
