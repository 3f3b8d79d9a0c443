"""The steps of our workloads in other frameworks, measured beside the backends."""
