"""No workload writes variables outside its steps, so presets for GPUs promise it."""

import collections

import pytest
import tensorflow as tf
from small_programs import build

import replicator
from replicator._tf import dispatch
from replicator.placement import devices
from workloads import catalog


@pytest.fixture
def dispatches(monkeypatch):
    """The graphs that are traced to be started, with all devices taken for GPUs."""
    monkeypatch.setattr(devices, "is_cpu", lambda device: device == "host")
    monkeypatch.setattr(devices, "cpu_of", devices.first_cpu)
    graphs = []
    trace = dispatch.Dispatch._trace

    def recorded(self, source):
        trace(self, source)
        graphs.append(self._traced.graph.as_graph_def())

    monkeypatch.setattr(dispatch.Dispatch, "_trace", recorded)
    return graphs


def train(name, policy):
    """Two steps on two replicas with a copy of every variable each."""
    tf.keras.utils.set_random_seed(5)
    repl = replicator.create(
        "in_graph",
        num_replicas=2,
        devices=["CPU:0", "CPU:0"],
        variable_placement="mirrored",
        external_writes=policy,
    )
    program = build(name, repl, external_writes=policy)
    losses = [program.run() for _ in range(2)]
    assert all(check.is_passed for check in program.sanity()), program.sanity()
    return losses


@pytest.mark.parametrize(
    "name",
    [
        "d4pg",
        pytest.param("resnet50", marks=pytest.mark.full),
        pytest.param("sngan", marks=pytest.mark.full),
    ],
)
def test_without_the_promise_nothing_is_compared_either(name, dispatches):
    """Nobody else can write their variables: dispatches and numbers are the same.

    Of the learner and of the copy of its targets. The full run adds the networks with
    convolutions, whose variables are looked at by the same functions.
    """
    checked_losses = train(name, "detect")
    checked = [*dispatches]
    dispatches.clear()
    losses = train(name, "never")

    assert checked_losses == losses
    assert len(checked) == len(dispatches) > 0
    for graph, promised in zip(checked, dispatches, strict=True):
        ops, expected = (
            collections.Counter(node.op for node in one.node)
            for one in (graph, promised)
        )
        assert expected == ops


@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_presets_for_gpus_promise_it(name):
    """All others look, as a replicator does by itself."""
    promises = {
        preset.name
        for preset in catalog.WORKLOADS[name].presets
        if preset.options.get("external_writes") == "never"
    }

    assert {"gpu"} == promises
    catalog.make_config(name, "gpu", {"external_writes": "detect"})
    with pytest.raises(
        ValueError, match=r"external_writes='no' must be one of 'detect', 'never'"
    ):
        catalog.make_config(name, "gpu", {"external_writes": "no"})
