"""Whether another process of the cluster is there, the same as before, and well."""
