"""Processes of one job: configuration, start-up, liveness, failures, servers."""
