"""JAX: ``shard_map`` over the devices of a process, or of a process per replica."""
