"""Reference workloads, each a package that depends only on the replicator."""
