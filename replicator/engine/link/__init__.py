"""Linking: from the collectives of all replicas to the ops that execute them."""
