"""Replicate, link and dispatch: the costs of the engine itself."""

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.core import devices
from replicator.core.topology import make_topology
from replicator.engine.analysis import analyze as analysis
from replicator.engine.analysis import plan
from replicator.engine.graph import body, optimize, trace
from replicator.engine.run import program
from replicator.variables.table import VariableTable

NUM_COLLECTIVES = 500
NUM_UNTIMED = 20  # of a run that only looks whether the benchmarks work
NUM_REPLICAS = 8

# Virtual devices must exist before TensorFlow runs its first op.
devices.split_cpu(NUM_REPLICAS)


@pytest.fixture(scope="module")
def num_collectives(request):
    """500 where something is measured."""
    is_untimed = request.config.getoption("benchmark_disable")
    return NUM_UNTIMED if is_untimed else NUM_COLLECTIVES


def _many_collectives(number):
    """A step of collectives, each of which depends on the one before."""

    def step(x):
        for _ in range(number):
            x = replicator.all_mean(tf.tanh(x))
        return x

    return trace.trace(step, [tf.TensorSpec([64])], NUM_REPLICAS)


def _on_cpus():
    return make_topology(
        [[name] for name in devices.split_cpu(NUM_REPLICAS)], is_mirrored=True
    )


@pytest.fixture(scope="module")
def traced(num_collectives):
    """A traced step of 500 collectives."""
    return _many_collectives(num_collectives)


def test_trace_500_collectives(benchmark, num_collectives):
    benchmark.pedantic(_many_collectives, [num_collectives], rounds=5, warmup_rounds=1)


def test_optimize_and_read_500_collectives(benchmark, traced):
    """Graph optimization and conversion, once per step function."""
    topology = _on_cpus()
    benchmark.pedantic(
        lambda: body.from_graph_def(optimize.optimize(traced, topology)),
        rounds=5,
        warmup_rounds=1,
    )


def test_plan_500_collectives_over_8_replicas(benchmark, traced):
    """Owners and buckets, where every device has a memory of its own."""
    topology = make_topology([[f"/device:GPU:{i}"] for i in range(NUM_REPLICAS)])
    benchmark(plan.make_plan, traced.collectives, topology)


def test_link_500_collectives_over_8_replicas(benchmark, traced, monkeypatch):
    """All of a program after tracing and optimizing: analyze, plan, copy, link."""
    topology = _on_cpus()
    optimized = optimize.optimize(traced, topology)
    monkeypatch.setattr(analysis, "trace", lambda *_: traced)

    def read_optimized(*_):
        copy = type(optimized)()
        copy.CopyFrom(optimized)
        return copy

    monkeypatch.setattr(analysis, "optimize", read_optimized)
    benchmark.pedantic(
        lambda: program.Program(lambda: None, [], topology, VariableTable(topology)),
        rounds=5,
        warmup_rounds=1,
    )


@pytest.mark.parametrize("name", ["plain tf.function", "single", "in_graph x4"])
def test_one_tiny_step(benchmark, name):
    """Dispatch of a step that computes almost nothing."""
    weight = tf.Variable(1.0)
    if name == "plain tf.function":

        @tf.function
        def plain():
            weight.assign_add(0.001)
            return weight.read_value()

        benchmark(lambda: float(plain()))
        return
    backend, _, replicas = name.partition(" x")
    repl = replicator.create(backend, num_replicas=int(replicas or 1))

    def step():
        weight.assign_add(0.001)
        return weight.read_value()

    benchmark(lambda: float(repl.run(step)[0]))


def test_16_tiny_steps_in_one_dispatch(benchmark):
    """The same 16 times in one call: divide by 16 for the cost of a step."""
    repl = replicator.create("in_graph", num_replicas=4)
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step():
        with tf.GradientTape() as tape:
            loss = weight * weight
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    benchmark(lambda: float(repl.run(step, num_steps=16)[0]))
