"""Elastic training: workers may be lost and join while a job trains.

``python -m replicator.elastic`` starts the workers, and starts all of them again on the
hosts that are left, or that are new. ``ElasticState`` continues from the last commit.
"""

VARIABLE = "REPLICATOR_ELASTIC"
"""What the supervisor tells each worker, in JSON; see ``Supervisor._start``."""
STOPPED = 75
"""Exit code of a worker that was asked to stop, and did after a commit."""
