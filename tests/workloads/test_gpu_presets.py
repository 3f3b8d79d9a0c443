"""Presets for GPUs: how they are fed, what they promise, what compiles beforehand."""

import collections

import numpy as np
import pytest
import short_resnet
import tensorflow as tf
from small_programs import build as build_small

import replicator
from replicator._tf import dispatch
from replicator.core import devices
from workloads import catalog, warm_up
from workloads import program as program_lib

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@pytest.fixture
def pair():
    return replicator.create("in_graph", num_replicas=2)


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Makes programs believe that replicas compute on GPUs; no GPU is at hand."""
    kind = type(replicator.create("in_graph", num_replicas=1))
    monkeypatch.setattr(kind, "feeds_gpus", True)


def build(name, repl, **options):
    data = "synthetic" if name == "d4pg" else catalog.WORKLOADS[name].builtin_data[0]
    return build_small(name, repl, data=data, **options)


def prefetched(program):
    """Batches that wait on each device, or 0."""
    prefetch = program._inputs._prefetch
    return 0 if prefetch is None else prefetch.num_batches


@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_the_preset_for_gpus_reads_synthetic_data(name):
    """Eight threads that decode would bound eight GPUs."""
    (preset,) = [p for p in catalog.WORKLOADS[name].presets if p.name == "gpu"]

    assert catalog.SYNTHETIC == preset.data


def test_replicas_say_whether_they_are_fed_on_gpus(pair, monkeypatch):
    """By the devices that receive batches."""
    assert not pair.feeds_gpus

    monkeypatch.setattr(type(pair), "_input_devices", lambda _self: [GPU, GPU])

    assert pair.feeds_gpus


@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_batches_wait_on_gpus_only(name, pair, as_on_gpus):
    """Two per GPU."""
    program = build(name, pair)

    assert 2 == program_lib.NUM_PREFETCHED == prefetched(program)


@pytest.mark.parametrize(
    "name",
    [
        "d4pg",
        pytest.param("resnet50", marks=pytest.mark.full),
        pytest.param("sngan", marks=pytest.mark.full),
    ],
)
def test_steps_run_on_batches_that_wait(name, pair, as_on_gpus):
    """All workloads get them from one iterator; the full run has a step of each."""
    program = build(name, pair)

    assert 2 == prefetched(program)
    assert np.isfinite(program.run())


@pytest.mark.parametrize("name", sorted(catalog.WORKLOADS))
def test_pipelines_of_cpus_are_unchanged(name, pair):
    """Nothing waits, and a pipeline has the threads of its preset."""
    program = build(name, pair)

    assert 0 == prefetched(program)
    if name != "d4pg":
        options = program._inputs.pipelines[0].options()
        assert 1 == options.threading.private_threadpool_size


@pytest.mark.parametrize("name", ["resnet50", "sngan"])
def test_a_pipeline_has_its_threads_for_every_gpu(name, pair, as_on_gpus):
    """One pipeline feeds all GPUs of a process."""
    program = build(name, pair, num_input_threads=3)
    options = program._inputs.pipelines[0].options()

    assert 6 == options.threading.private_threadpool_size


@pytest.mark.parametrize(
    "name", ["resnet50", pytest.param("sngan", marks=pytest.mark.full)]
)
def test_training_on_bytes_starts_with_the_same_loss(name):
    """Pixels are only rounded, by at most 0.2 % of their scale."""
    losses = []
    for dtype in ("float32", "uint8"):
        tf.keras.utils.set_random_seed(3)
        program = build(name, replicator.create("single"), input_dtype=dtype)
        losses.append(program.run())

        assert dtype == program._inputs.element_spec["image"].dtype.name
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


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
    program = build_small(name, repl, external_writes=policy)
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
    """Nobody else can write their variables: dispatches and numbers are the same."""
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


def test_a_workload_is_built_and_run_in_each_number_type(monkeypatch):
    """On CPUs, with a short network: what would end it on a GPU ends it here."""
    monkeypatch.setattr(warm_up, "_PER_REPLICA_BATCH_SIZE", 2)
    built = []
    from workloads.resnet50.study import WORKLOAD

    build = type(WORKLOAD).build

    def note(self, repl, **options):
        program = build(self, repl, **options)
        built.append(program)
        return program

    monkeypatch.setattr(type(WORKLOAD), "build", note)
    with short_resnet.short():
        warm_up.warm_up("resnet50", "smoke", ("float32", "mixed_bfloat16"))

    assert ["float32", "bfloat16"] == [program.compute_dtype for program in built]
    assert [2, 2] == [program.per_replica_batch_size for program in built]
