"""What the chief of a cluster with faults does, and says after every call.

It continues from the last checkpoint, and trains until somebody is killed.
"""

import cluster_member
import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_DISPATCHES = 2
NUM_STEPS = 10
SAVE_EVERY = 4
NUM_BIG = 4_000_000
WORKER_TIMEOUT_SEC = 60.0


def by_pipeline(ctx):
    """Integers: 1 to 7 again and again on worker 0, twice as much on worker 1."""
    numbers = tf.data.Dataset.range(1, 8).repeat()
    return numbers.map(lambda x: tf.cast(x * (ctx.input_pipeline_id + 1), tf.float32))


def total(num_steps, num_workers):
    of_first = sum(1 + step % 7 for step in range(num_steps))
    return float(of_first * sum(range(1, num_workers + 1)))


def make_training(repl):
    """Two optimizers on all servers, whose sums of integers identify every step."""
    with repl.context():
        module = tf.Module()
        module.plain = [tf.Variable(tf.zeros([n, 2])) for n in (3, 40, 5, 7)]
        module.heavy = [tf.Variable(tf.zeros([n])) for n in (9, 4, 60, 30)]
        module.big = tf.Variable(tf.zeros([NUM_BIG]), trainable=False)
        sgd = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
        # With momentum 1 the slot is minus the sum of all gradients.
        momentum = repl.wrap_optimizer(keras.optimizers.SGD(1e-6, momentum=1.0))
        sgd.build(module.plain)
        momentum.build(module.heavy)

    def step(value):
        grads = [0.0 * w + value for w in (*module.plain, *module.heavy)]
        num = len(module.plain)
        sgd.apply_gradients(zip(grads[:num], module.plain, strict=True))
        momentum.apply_gradients(
            zip([1e6 * g for g in grads[num:]], module.heavy, strict=True)
        )
        return value

    return module, sgd, momentum, step


def distinct(variables):
    """All values there are in some variables."""
    return np.unique(np.concatenate([np.ravel(v.numpy()) for v in variables])).tolist()


def train(repl, folder):
    module, sgd, momentum, step = make_training(repl)
    inputs = repl.make_input_iterator(by_pipeline)
    manager = repl.make_checkpoint_manager(
        folder / "checkpoints",
        inputs=inputs,
        module=module,
        sgd=sgd,
        momentum=momentum,
    )
    restored = manager.restore()
    call = restored.step if restored else 0
    cluster_member.send(restored=call)
    while True:
        for _ in range(NUM_DISPATCHES):
            repl.schedule(step, inputs, num_steps=NUM_STEPS)
        repl.join()
        call += 1
        try:
            values = {
                "plain": distinct(module.plain),
                "heavy": distinct(momentum.wrapped.momentums),
                "num_updates": [int(o.iterations.numpy()) for o in (sgd, momentum)],
            }
        except tf.errors.UnavailableError:
            continue  # TensorFlow's own words; the next call says which server is lost
        num_counted = repl.staleness().num_updates
        cluster_member.send(
            call=call, redone=repl.num_redone, num_counted=num_counted, **values
        )
        if call % SAVE_EVERY == 0:
            cluster_member.send(saving=call)
            manager.save(call)
            cluster_member.send(saved=call)


def set_up(folder):
    return (folder,)


def end(folder):
    """Trains, and says how it ended."""
    try:
        repl = replicator.create("async", recovery_timeout_sec=WORKER_TIMEOUT_SEC)
        train(repl, folder)
    except replicator.ReplicatorError as error:
        cluster_member.send(error=type(error).__name__, message=str(error))
        raise


CASES = {"end": end}
