"""The programs as cases of a cluster of workers, which run them on one replicator."""

import functools

from tutorials import targets

import replicator

TIMEOUT_SEC = 60.0
CASES = {name: functools.partial(targets.run, name) for name in targets.PROGRAMS}


def set_up(_folder):
    """The replicator that every program runs on."""
    return (replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC),)
