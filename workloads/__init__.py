"""Reference workloads, each a package that knows the replicator and nothing above."""
