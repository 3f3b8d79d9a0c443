"""One public class for two patterns of replication over workers."""

import pytest

import replicator

PATTERNS = {
    None: replicator.MultiWorkerBetweenGraphReplicator,
    "between_graph": replicator.MultiWorkerBetweenGraphReplicator,
    "in_graph": replicator.MultiWorkerInGraphReplicator,
}


def make(kind, **options):
    """An object before it joins a cluster."""
    return kind.__new__(kind, **options)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_makes_an_instance_of_the_class_that_was_called(pattern):
    """Else Python does not call its constructor, and isinstance is false."""
    made = make(replicator.MultiWorkerReplicator, pattern=pattern, num_replicas=2)

    assert type(made) is PATTERNS[pattern]
    assert isinstance(made, replicator.MultiWorkerReplicator)
    assert made.pattern == (pattern or "between_graph")


@pytest.mark.parametrize("kind", dict.fromkeys(PATTERNS.values()))
def test_the_class_of_a_pattern_takes_its_own_only(kind):
    """The other one would make something else than the name says."""
    (other,) = {"between_graph", "in_graph"} - {kind.pattern}

    assert type(make(kind)) is type(make(kind, pattern=kind.pattern)) is kind
    with pytest.raises(
        ValueError,
        match=rf"'{other}' is not that of {kind.__name__}, which is '{kind.pattern}'; "
        rf"use MultiWorkerReplicator\(pattern='{other}'\)",
    ):
        make(kind, pattern=other)


def test_a_backend_says_which_options_it_has():
    """Before the cluster is joined."""
    with pytest.raises(
        TypeError, match=r"'multi_worker' has no option 'worker_timeout_sec'; it has"
    ):
        replicator.create("multi_worker", num_replicas=2, worker_timeout_sec=3)
