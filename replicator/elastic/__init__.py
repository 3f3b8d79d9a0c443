"""Elastic training: workers may be lost and join while a job trains.

``python -m replicator.elastic`` starts the workers, and starts all of them again on the
hosts that are left, or that are new. ``ElasticState`` continues from the last commit.
"""
