"""What a pipeline keeps of activations: by liveness, and by TensorFlow's allocator."""

import re

import keras
import pytest
import tensorflow as tf
from staged_model import Model, mean_squared

import replicator

SCHEDULES = ("fill_drain", "one_forward_one_backward")
PARTS = 16
# Two of 16 micro-batches are an eighth; what one task needs comes on top.
MOST = 0.2

# Wide batches and narrow layers: activations are nearly all of the memory.
ROWS, WIDTH, NUM_LAYERS = 8192, 128, 4
LEAST_BYTES = 500_000_000


def kept(repl):
    found = re.findall(r"micro-batches, ([\d,]+) bytes", repl.explain())
    return [int(text.replace(",", "")) for text in found]


def test_the_first_stage_keeps_two_micro_batches_instead_of_all():
    """By liveness over the schedule."""
    found = {}
    for schedule in SCHEDULES:
        model = Model(1, 2)
        pipeline = model.pipeline(num_microbatches=PARTS, schedule=schedule)
        model.train(pipeline, num_steps=1)
        found[schedule] = kept(model.repl)[0]

    assert found["one_forward_one_backward"] <= MOST * found["fill_drain"]


@pytest.mark.full
def test_the_allocator_agrees():
    """Above what was there before the step, where fill-drain takes half a gigabyte.

    All CPU devices of a process have one allocator, so that it is of both stages.
    Liveness is counted task by task: it does not see what a task frees, or needs,
    while it runs. Left to the full run.
    """
    peaks, alive = {}, {}
    for schedule in SCHEDULES:
        repl, run = wide(schedule)
        run()
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        run()
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        peaks[schedule] = peak - before
        alive[schedule] = sum(kept(repl))

    assert peaks["fill_drain"] >= LEAST_BYTES
    assert peaks["one_forward_one_backward"] <= MOST * peaks["fill_drain"], peaks
    of_two = 2 * alive["fill_drain"] / PARTS
    for schedule in SCHEDULES:
        assert abs(peaks[schedule] - alive[schedule]) <= of_two, (peaks, alive)


def wide(schedule):
    repl = replicator.create(
        "in_graph",
        num_replicas=1,
        devices=["CPU:0", "CPU:1"],
        logical_devices_per_replica=2,
    )
    stages = []
    with repl.context():
        for k in range(2):
            with replicator.logical_device(k):
                layers = [keras.layers.Dense(WIDTH, "tanh") for _ in range(NUM_LAYERS)]
                stages.append(keras.Sequential([keras.Input((WIDTH,)), *layers]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.01))
    pipeline = replicator.Pipeline(stages, num_microbatches=PARTS, schedule=schedule)
    shape = [PARTS * ROWS, WIDTH]
    batch = tf.random.stateless_normal(shape, (0, 1)), tf.zeros(shape)

    def step():
        loss, pairs = pipeline.loss_and_gradients(batch, mean_squared)
        optimizer.apply_gradients(pairs)
        return loss

    return repl, lambda: float(repl.run(step)[0])
