"""The steps of our workloads in other frameworks, measured beside the backends.

Their environments have no packages of ours: programs import this file and ``inputs``.
"""

EXPORT_VARIABLE = "REPLICATOR_HARNESS_EXPORT"
"""Environment variable with the folder of what a trial of a peer begins with."""
EXPORT_SETTINGS = "settings.json"
"""Its file with settings and losses."""
