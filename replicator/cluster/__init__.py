"""Processes of one job: configuration, start-up, failure detection, servers."""
