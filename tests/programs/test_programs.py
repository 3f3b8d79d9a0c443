"""Programs of tutorials give on replicas what they give on one device.

Replicas are in this process, or in a real cluster of two processes.
"""

import functools
from pathlib import Path

import case_cluster
import numpy as np
import pytest
from tutorials import targets

# Program and target -> why the stock peer cannot run it.
NOT_MEANT = {
    ("mixed_precision", "tf_mirrored"): "MirroredStrategy cannot update in a branch",
    ("moving_averages", "tf_mirrored"): "MirroredStrategy cannot update in a branch",
}
# Program and target -> what is wrong there today.
WRONG = {
    (name, "tf_mirrored"): (
        "Keras divides its losses by the number of replicas under a tf.distribute "
        "strategy, and the wrapped optimizer takes the mean of the gradients again"
    )
    for name in ("gan", "keras_metrics")
} | {
    ("mixed_lengths", "tf_mirrored"): (
        "Keras concatenates the rows of all replicas, and squares duplicate rows "
        "separately"
    )
}
PAIRS = [
    pytest.param(
        name,
        target,
        id=f"{name}-{target}",
        marks=[pytest.mark.xfail(strict=True, reason=WRONG[name, target])]
        if (name, target) in WRONG
        else [],
    )
    for name in targets.PROGRAMS
    for target in targets.IN_PROCESS
    if (name, target) not in NOT_MEANT
]


# Sparse rows of different numbers, state per replica, and work that is dealt out: what
# a worker sees of others. The collectives of the other programs are conformance cases.
OFTEN_ON_WORKERS = ("evolution", "keras_metrics", "mixed_lengths")


@functools.cache
def _on_one_device(name):
    return targets.run_on(name, "single")


@pytest.mark.covering(strength=1, prefer={"target": ["in_graph_mirrored"]})
@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_a_program_trains_like_one_device(name, target):
    """Losses, weights and state, on two replicas with half of each batch."""
    expected = _on_one_device(name)

    targets.compare(name, expected, targets.run_on(name, target))


@pytest.fixture(scope="module")
def workers(request, tmp_path_factory):
    """Two workers that ran the programs which are compared; one cluster runs all."""
    names = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and "workers" in item.fixturenames
    ]
    return case_cluster.ran(
        "program_cases",
        tmp_path_factory.mktemp("programs"),
        path=Path(__file__).parent,
        cases=names,
        num_workers=2,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in OFTEN_ON_WORKERS else pytest.mark.full)
        for name in targets.PROGRAMS
    ],
)
def test_a_program_on_workers_trains_like_one_device(workers, name):
    """Each worker has one replica and half of each batch."""
    expected = _on_one_device(name)

    for outcome in workers.values(name):
        targets.compare(name, expected, outcome)


@pytest.mark.parametrize("name", targets.PROGRAMS)
def test_a_program_does_something(name):
    """Its numbers are finite, and its weights are not those it began with."""
    outcome = _on_one_device(name)
    leaves = [
        leaf
        for values in outcome.values()
        for leaf in (values if isinstance(values, list) else [values])
    ]

    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
    trace = outcome.get("losses") or outcome.get("scores") or outcome["results"]
    assert len({str(value) for value in trace}) == len(trace)
