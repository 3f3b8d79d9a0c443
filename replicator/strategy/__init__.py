"""``tf.distribute`` in front of the replicators: its spelling of what they do."""
