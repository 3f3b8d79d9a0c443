"""A program that trains elastically, and logs what each step has read.

python elastic_trainer.py FOLDER NUM_STEPS BACKEND
"""

import json
import os
import pathlib
import sys
import time

import keras
import tensorflow as tf

import replicator

NUM_EXAMPLES = 60
GLOBAL_BATCH = 8  # which three workers do not divide


def records(folder):
    """What workers logged, without a line that a kill has cut off."""
    logs = [path.read_text() for path in sorted(folder.glob("log-*"))]
    return [json.loads(line) for log in logs for line in log.split("\n")[:-1]]


def train(repl, folder, num_steps, *, commit_every=5, per_replica=0, lost_at=-1):
    """Trains a linear model; returns its weights. Fails before step ``lost_at``."""
    keras.utils.set_random_seed(1)
    with repl.context():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.02, momentum=0.9))

    def input_fn(ctx):
        data = tf.data.Dataset.range(NUM_EXAMPLES).shuffle(NUM_EXAMPLES, seed=3)
        size = per_replica * repl.num_replicas or GLOBAL_BATCH
        return replicator.split_global_batches(data.repeat(), ctx, size, uneven=True)

    def step(numbers):
        divisors = tf.constant([2, 3, 5, 7], tf.int64)
        features = tf.cast(numbers[:, None] % divisors, tf.float32)
        labels = tf.cast(numbers[:, None], tf.float32) / NUM_EXAMPLES
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum((model(features / 7.0) - labels) ** 2, 1)
            loss = replicator.mean_over_examples(errors)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss, numbers

    inputs = repl.make_input_iterator(input_fn)
    state = replicator.ElasticState(
        repl,
        inputs=inputs,
        batches="keep_per_replica" if per_replica else "keep_global",
        scale_learning_rate="linear" if per_replica else None,
        model=model,
        optimizer=optimizer,
    )
    job = json.loads(os.environ.get("REPLICATOR_ELASTIC", '{"start": 0}'))
    name = f"{job['start']}-{repl.worker_id}"
    (folder / f"pid-{name}").write_text(str(os.getpid()))
    with (folder / f"log-{name}").open("a", buffering=1) as log:
        for number in state.steps(num_steps, commit_every=commit_every):
            assert number != lost_at
            loss, examples = repl.run(step, inputs)
            record = {
                "start": job["start"],
                "step": number,
                "loss": float(repl.reduce("mean", loss)),
                "examples": [int(n) for part in examples for n in part],
                "rate": float(optimizer.learning_rate),
            }
            log.write(json.dumps(record) + "\n")
            time.sleep(0.05 if repl.num_workers > 1 else 0.0)
    return model.get_weights()


def main():
    folder, num_steps, backend = sys.argv[1:]
    options = {"heartbeat_timeout_sec": 5.0} if backend == "multi_worker" else {}
    repl = replicator.create(backend, **options)
    folder = pathlib.Path(folder)
    weights = train(repl, folder, int(num_steps))
    text = json.dumps([weight.tolist() for weight in weights])
    (folder / "weights.json").write_text(text)


if __name__ == "__main__":
    main()
