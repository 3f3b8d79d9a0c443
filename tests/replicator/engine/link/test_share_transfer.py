"""Share transfer: the new values of one program arrive in all others."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.engine.analysis.shares import Share
from replicator.engine.link import share_transfer

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def make_shares(shapes, source):
    return [
        Share(
            node=f"update_{i}",
            handle=f"v_{i}",
            source=source,
            dtype=tf.float64,
            shape=tf.TensorShape(shape),
        )
        for i, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("shapes", [[(2, 3)], [(3,), (), (2, 2)]], ids=["one", "three"])
def test_every_program_has_the_values_of_the_source(execute, workers, shapes, source):
    """In their shapes, in one transfer, whoever updates."""
    shares = make_shares(shapes, source)
    values = [np.random.default_rng(i).normal(size=s) for i, s in enumerate(shapes)]
    sent = {(s.node, s.handle): f"new_{i}" for i, s in enumerate(shares)}
    nodes, outputs = [], []
    for worker, cross_worker in enumerate(workers(3)):
        found, more = share_transfer.send(
            shares,
            f"w{worker}",
            cross_worker,
            sent if worker == source else {},
            CPU[worker],
        )
        assert list(sent) == list(found)
        nodes += more + cross_worker.nodes
        outputs += [(ref, tf.float64) for ref in found.values()]

    results = execute(nodes, {f"new_{i}": v for i, v in enumerate(values)}, outputs)

    for worker in range(3):
        mine = results[worker * len(values) : (worker + 1) * len(values)]
        for value, result in zip(values, mine, strict=True):
            np.testing.assert_array_equal(value, result)
    sends = [node for node in nodes if node.op == "CollectiveBcastSendV2"]
    receives = [node for node in nodes if node.op == "CollectiveBcastRecvV2"]
    assert (1, 2) == (len(sends), len(receives))
