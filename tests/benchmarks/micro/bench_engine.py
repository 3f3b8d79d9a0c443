"""The first step and dispatch: the costs of the engine itself."""

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.core import devices

NUM_COLLECTIVES = 500
NUM_UNTIMED = 20  # of a run that only looks whether the benchmarks work
NUM_REPLICAS = 8

# Virtual devices must exist before TensorFlow runs its first op.
NAMES = devices.split_cpu(NUM_REPLICAS)


@pytest.mark.parametrize("num_replicas", [1, NUM_REPLICAS])
def test_first_step_of_500_collectives(benchmark, request, num_replicas):
    """Traced, optimized, planned and linked; most of it once, whatever the number."""
    is_untimed = request.config.getoption("benchmark_disable")
    number = NUM_UNTIMED if is_untimed else NUM_COLLECTIVES
    ones = [tf.ones([64])] * num_replicas

    def run():
        repl = replicator.create(
            "in_graph",
            num_replicas=num_replicas,
            devices=NAMES[:num_replicas],
            variable_placement="mirrored",
        )

        def step(x):
            for _ in range(number):
                x = replicator.all_mean(tf.tanh(x))
            return x

        return repl.run(step, replicator.PerReplica(ones))

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("name", ["plain tf.function", "single", "in_graph x4"])
def test_one_tiny_step(benchmark, name):
    weight = tf.Variable(1.0)

    def step():
        weight.assign_add(0.001)
        return weight.read_value()

    if name == "plain tf.function":
        plain = tf.function(step)
        benchmark(lambda: float(plain()))
        return
    backend, _, replicas = name.partition(" x")
    repl = replicator.create(backend, num_replicas=int(replicas or 1))
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
