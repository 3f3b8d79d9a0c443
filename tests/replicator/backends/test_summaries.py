"""summary() of a replicator, and tf.summary in its step."""

import keras
import tensorflow as tf

import replicator


def _written(folder):
    found = []
    for path in sorted(folder.iterdir()):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [
                (event.step, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
            ]
    return found


def _run(repl, folder, step, num_runs=2, num_steps_per_run=1):
    writer = tf.summary.create_file_writer(str(folder))
    data = tf.data.Dataset.range(1, repl.num_replicas + 1).repeat()
    inputs = repl.make_input_iterator(
        lambda _: data.map(lambda x: tf.cast(x, tf.float32))
    )
    with writer.as_default():
        for _ in range(num_runs):
            repl.run(step, inputs, num_steps=num_steps_per_run)
    writer.close()
    return _written(folder)


def _count(repl):
    with repl.context():
        return tf.Variable(0, dtype=tf.int64, trainable=False)


def test_each_value_is_written_once(repl_once, tmp_path):
    count = _count(repl_once)

    def step(x):
        tf.summary.write("x", 10.0 * x, step=count)
        tf.summary.write("mean", replicator.all_mean(x), step=count)
        count.assign_add(1)

    mean = (1.0 + repl_once.num_replicas) / 2
    expected = [(i, value) for i in range(2) for value in (10.0, mean)]
    assert expected == sorted(_run(repl_once, tmp_path, step), key=lambda x: x[0])


def test_conditions_of_the_user_write_once(in_graph, tmp_path):
    count = _count(in_graph)

    def step(x):
        def write():
            tf.summary.write("x", x, step=count)
            return x

        with tf.summary.record_if(count % 2 == 0):
            tf.summary.write("even", 2.0 * x, step=count)
        y = tf.cond(x > 0.0, write, lambda: x)
        count.assign_add(1)
        return y

    found = _run(in_graph, tmp_path, step, 3)
    assert [(0, 1.0), (0, 2.0), (1, 1.0), (2, 1.0), (2, 2.0)] == sorted(found)


def test_each_step_of_one_dispatch_writes(in_graph, tmp_path):
    count = _count(in_graph)

    def step(x):
        tf.summary.write("count", x * tf.cast(count, tf.float32), step=count)
        count.assign_add(1)

    found = _run(in_graph, tmp_path, step, 1, num_steps_per_run=4)
    assert [(i, float(i)) for i in range(4)] == found


def _train(repl):
    """A weight of 40 bytes with momentum, and a replica-local counter of 4."""
    with repl.context():
        weight = tf.Variable(tf.zeros([10]))
        local = tf.Variable(0.0, trainable=False, name="counter")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))

    def step():
        replica_id = replicator.get_replica_context().replica_id
        local.assign_add(tf.cast(replica_id, tf.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    repl.run(step)
    return step, weight, local, optimizer


def test_shared_variables_are_held_once():
    """Four replicas on one CPU: 40 + 40 bytes once, the local 4 bytes five times."""
    repl = replicator.create("in_graph", num_replicas=4)
    before = repl.summary()
    kept = _train(repl)

    lines = repl.summary().splitlines()
    assert kept
    assert "variables: none yet; the first run() places" in before
    assert (
        "InGraphReplicator: 4 replicas on 1 worker, 4 in sync, 1 logical devices each"
        == lines[0]
    )
    assert "this process: worker 0 (chief), replicas 0 to 3" == lines[1]
    assert "  replica 0: CPU:0; mirrored variables: its own copy" == lines[2]
    assert "  replica 3: CPU:0; mirrored variables: the copy of replica 0" == lines[5]
    # Weight and momentum, rate (4) and step counter (8); 4 copies and the user's own.
    assert "  CPU:0: 112 bytes (mirrored 92, replica-local 20)" == lines[-2]
    assert "replica-local, each replica has its own: counter" == lines[-1]
    assert repl.explain().endswith("\nreplica-local, each replica has its own: counter")


def test_mirrored_variables_are_held_by_every_device(mirrored):
    repl = mirrored()
    kept = _train(repl)

    lines = repl.summary().splitlines()
    assert kept
    assert "  replica 1: CPU:1; mirrored variables: its own copy" == lines[3]
    assert [
        "  CPU:0: 100 bytes (mirrored 92, replica-local 8)",
        "  CPU:1: 96 bytes (mirrored 92, replica-local 4)",
    ] == lines[-3:-1]


def test_many_replica_local_variables_are_counted():
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        layers = [keras.layers.BatchNormalization() for _ in range(4)]
        for layer in layers:
            layer.build([2, 3])

    def step():
        replica_id = replicator.get_replica_context().replica_id
        x = tf.cast(replica_id, tf.float32) * tf.ones([2, 3])
        return [layer(x, training=True) for layer in layers]

    repl.run(step)

    assert repl.summary().count("moving_") == 6
    assert repl.summary().endswith("and 2 more")


def test_logical_devices_are_listed():
    repl = replicator.create(
        "in_graph",
        num_replicas=2,
        logical_devices_per_replica=2,
        devices=[["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]],
    )

    assert "  replica 1: CPU:2, CPU:3 (logical device 1);" in repl.summary()


def test_every_backend_has_a_summary(repl_once):
    first = repl_once.summary().splitlines()[0]

    kind, count = type(repl_once).__name__, repl_once.num_replicas
    assert first.startswith(f"{kind}: {count} replicas on 1")
