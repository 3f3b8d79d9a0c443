"""Programs that tests run in processes of their own: ``programs.py NAME ARGUMENTS``."""

import collections
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time

import graphs
import keras
import tensorflow as tf

import replicator
from replicator.core import devices

# Which operations a step has after it was optimized for devices. A process of its own:
# TensorFlow decides once whether rules of oneDNN hold.
LOCAL = "/job:localhost/replica:0/task:0/device:"
REMOTE = "/job:worker/replica:0/task:1/device:"
FUSED_ON = {
    "gpu": [f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"],
    "remote_gpu": [f"{REMOTE}GPU:0"],
    "cpu": [f"{LOCAL}CPU:0"],
    "gpu_and_cpu": [f"{LOCAL}GPU:0", f"{LOCAL}CPU:0"],
}


def _block(x):
    ones = tf.fill([4], tf.reduce_max(x))  # no constant, which would be folded
    normalized = tf.compat.v1.nn.fused_batch_norm(
        x, ones, ones, is_training=True, data_format="NHWC"
    )
    return tf.nn.relu(normalized[0])


def _fused_step(images):
    repeated = tf.while_loop(
        lambda index, _: index < 3, lambda i, x: (i + 1, _block(x)), (0, images)
    )
    return tf.reduce_sum(_block(images)) + tf.reduce_sum(repeated[1])


def _operations(nodes):
    return sorted(n.op for n in nodes if n.op in ("_FusedBatchNormEx", "Relu"))


def onednn_rules():
    """Prints the operations as JSON, by where the step runs."""
    from replicator._tf import dispatch

    spec, found = tf.TensorSpec([2, 8, 8, 4], tf.float32), {}
    for where, names in FUSED_ON.items():
        function = graphs.linked(graphs.on_devices(names), _fused_step, spec)
        found[where] = _operations(graphs.of_replica(function))
    graph = tf.function(_fused_step, autograph=False).get_concrete_function(spec).graph
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.attr.pop("_lower_using_switch_merge", None)
    unstamped = dispatch.optimize_graph(
        graph_def,
        [output.op.name for output in graph.outputs],
        devices={f"{LOCAL}CPU:0": "CPU", f"{LOCAL}GPU:0": "GPU"},
    )
    inner = (function.node_def for function in unstamped.library.function)
    nodes = itertools.chain(unstamped.node, *inner)
    print(json.dumps(found | {"without_stamps": _operations(nodes)}))  # noqa: T201


def one_core_member(threads):
    """A member of a cluster on one core; the chief takes four steps."""
    from replicator import server

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
        server.run([])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if threads == "too late":
        tf.constant(1.0)
    repl = replicator.create("async")
    with repl.context():
        count = tf.Variable(0.0)
    repl.run(lambda: count.assign_add(1.0), num_steps=2)
    print("count", count.numpy())  # noqa: T201


def determined_losses(seed, num_steps=2):
    """Trains with every source of randomness."""
    replicator.set_determinism(seed)
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))

    def input_fn(ctx):
        data = tf.data.Dataset.range(64).shuffle(64)
        data = data.map(
            lambda i: tf.random.normal([8, 8, 1]) + tf.cast(i, tf.float32) / 64,
            num_parallel_calls=4,
        )
        return data.repeat().batch(ctx.get_per_replica_batch_size(16))

    inputs = repl.make_input_iterator(input_fn)

    def step(x):
        with tf.GradientTape() as tape:
            noise = tf.random.uniform([tf.shape(x)[0], 1])
            loss = tf.reduce_mean((model(x, training=True) - noise) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    losses = [repl.run(step, inputs) for _ in range(num_steps)]
    return [float(loss).hex() for per_replica in losses for loss in per_replica]


def determined_training(seed):
    sys.stdout.write(" ".join(determined_losses(int(seed))))


NUM_WEIGHTS = 400_000  # a save takes long enough to be hit


def _saver(directory):
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        weights = tf.Variable(tf.zeros([NUM_WEIGHTS]), trainable=False)
        local = tf.Variable(tf.zeros([1000]), trainable=False)
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(1 << 40))

    def step(number):
        replica_id = replicator.get_replica_context().replica_id
        weights.assign_add(tf.ones_like(weights))
        local.assign_add(tf.fill([1000], tf.cast(replica_id + 1, tf.float32)))
        return number, local.read_value()

    manager = repl.make_checkpoint_manager(
        directory, max_to_keep=2, inputs=inputs, weights=weights, local=local
    )
    return repl, inputs, step, weights, manager


def save_without_end(directory):
    """Continues from the last checkpoint; saves after every step."""
    repl, inputs, step, weights, manager = _saver(directory)
    done = pathlib.Path(directory) / "last_completed"
    restored = manager.restore()
    number = restored.step if restored else 0
    while True:
        number += 1
        batches, local = repl.run(step, inputs)
        # What was restored is whole: every part belongs to the same step.
        assert [2 * number - 2, 2 * number - 1] == [int(b) for b in batches]
        for replica_id in range(2):
            assert bool(tf.reduce_all(local[replica_id] == number * (replica_id + 1)))
        assert bool(tf.reduce_all(weights == float(number)))
        manager.save(number)
        temporary = done.with_suffix(".new")
        temporary.write_text(str(number), encoding="utf-8")
        temporary.rename(done)


# Replicas that meet in collectives of one process.
STEPS_PER_RUN = 20


def _flat(num_replicas, **options):
    names = [f"CPU:{index}" for index in range(num_replicas)]
    return replicator.create(
        "in_graph", num_replicas=num_replicas, devices=names, **options
    )


def _per_replica(values):
    return replicator.PerReplica([tf.constant(float(value)) for value in values])


def _train(num_replicas, num_steps):
    repl = _flat(num_replicas)
    with repl.context():
        weights = [tf.Variable(tf.zeros([300])), tf.Variable(tf.zeros([20_000]))]

    def step():
        x = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        for weight in weights:
            weight.assign_add(replicator.all_sum(tf.ones_like(weight) * x))

    for _ in range(num_steps // STEPS_PER_RUN):
        repl.run(step, num_steps=STEPS_PER_RUN)
    repl.assert_in_sync()
    ends = [float(weight[-1]) for weight in weights]
    return {"weights": ends, "algorithm": "algorithm ring" in repl.explain()}


def _gated(num_replicas):
    repl = _flat(num_replicas)
    with repl.context():
        weight = tf.Variable(tf.zeros([300]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)

    def step(x):
        optimizer.apply_gradients([(tf.ones_like(weight) * x, weight)])
        return replicator.all_mean(x)

    values = _per_replica(range(num_replicas))
    means = [float(repl.run(step, values)[0]) for _ in range(4)]
    return {"means": means, "weight": float(weight[0])}


def _fail():
    """One replica of four raises while the others wait for it; then all continue."""
    repl = _flat(4)

    def step(x):
        tf.debugging.assert_less(x, 10.0, message="replica 1 has no memory")
        return replicator.all_sum(x)

    repl.run(step, _per_replica([0, 1, 2, 3]))
    start = time.monotonic()
    error = ""
    try:
        repl.run(step, _per_replica([0, 11, 2, 3]))
    except tf.errors.InvalidArgumentError as raised:
        error = raised.message
    sec = time.monotonic() - start
    after = repl.run(step, _per_replica([0, 1, 2, 3]))
    return {"error": error, "sec": sec, "after": [float(x) for x in after]}


def _wait_too_long():
    """A replica that never comes; ends all collectives of this process."""
    repl = _flat(2, timeout_sec=1.0)

    def step(x):
        return replicator.all_sum(x)

    made = devices.flat_group
    group = made(repl.topology, None)
    three = devices.FlatGroup(size=3, key=group.key + 1000, keys=group.keys)
    devices._FLAT_GROUPS[2, repl.topology.replica_devices] = three
    errors = []
    for _ in range(2):
        start = time.monotonic()
        try:
            repl.run(step, _per_replica([0, 1]))
        except replicator.ReplicatorError as raised:
            errors.append([type(raised).__name__, str(raised)])
        sec = time.monotonic() - start
    return {"errors": errors, "sec": sec}


def _cross_device_edges(num_replicas):
    """Tensors that cross devices to publish 20 statistics, by type."""
    repl = _flat(num_replicas)
    with repl.context():
        weight = tf.Variable(tf.ones([4]))
        statistics = [
            tf.Variable(tf.zeros([2] * (i % 3)), trainable=False) for i in range(16)
        ] + [tf.Variable(tf.zeros([3], tf.float64), trainable=False) for _ in range(4)]

    def step(x):
        weight.assign_add(replicator.all_mean(tf.ones([4]) * x))
        for statistic in statistics:
            statistic.assign_add(tf.ones_like(statistic) * tf.cast(x, statistic.dtype))

    repl.run(step, _per_replica(range(num_replicas)))
    ends = [float(tf.reduce_max(statistic)) for statistic in statistics]
    program = repl.build_step(step, [tf.TensorSpec([], tf.float32)])
    dispatch = program._make_function(1, None, None)
    dispatch._trace(_per_replica(range(num_replicas)))
    graph = dispatch._traced.graph
    crossing = {
        (tensor.name, op.device): tensor.dtype.name
        for op in graph.get_operations()
        for tensor in op.inputs
        if op.device and tensor.op.device not in ("", op.device)
    }
    return {"edges": collections.Counter(crossing.values()), "means": sorted(set(ends))}


def flat(num_steps):
    """Prints as JSON what replicas saw that meet in collectives of one process.

    Eight virtual CPU devices are taken for parts of one GPU each, and one thread runs
    ops.
    """
    from tiny_models import take_cpus_for_gpus

    tf.config.threading.set_inter_op_parallelism_threads(1)
    devices.split_cpu(8)
    take_cpus_for_gpus()
    found = {
        "train": {n: _train(n, int(num_steps)) for n in (2, 8)},
        "edges": {n: _cross_device_edges(n) for n in (2, 8)},
        "gated": _gated(2),
        "fail": _fail(),
        "wait": _wait_too_long(),
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


# On GPUs: what they start, and whether several replicas on one train as one.
NUM_DISPATCHES = 5


def count_events(trace):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(trace.read_bytes())
    counts = {"kernels": 0, "copies": 0}
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU:0"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                is_copy = name.lower().startswith(("memcpy", "memset"))
                counts["copies" if is_copy else "kernels"] += 1
    return {name: count / NUM_DISPATCHES for name, count in counts.items()}


def count_kernels(backend, preset, per_replica_batch_size):
    """Counts what one dispatch of ResNet-50 starts on GPU 0.

    Prints JSON: kernels and copies per dispatch, from TensorFlow's profiler. It counts
    none where CUPTI, which it asks, is refused, as in many containers; then its log
    says why.
    """
    from workloads import WORKLOADS

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    WORKLOADS["resnet50"].prepare(data="synthetic")
    program = WORKLOADS["resnet50"].build(
        replicator.create(backend, num_replicas=1),
        preset=preset,
        data="synthetic",
        per_replica_batch_size=int(per_replica_batch_size),
        seed=1,
        options={},
    )
    for _ in range(3):
        program.run(1)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(NUM_DISPATCHES):
            program.run(1)
        tf.profiler.experimental.stop()
        (trace,) = pathlib.Path(folder).rglob("*.xplane.pb")
        sys.stdout.write(json.dumps(count_events(trace)) + "\n")


GLOBAL_BATCH_SIZE = 32
NUM_STEPS = 20
PART_MIB = 2048


def two_on_one(kind, replicas):
    """Trains a small network on one device (``gpu`` or ``cpu``), or on parts of it.

    Prints the loss of each step. The global batch is the same for any number of
    replicas.
    """
    num_replicas = int(replicas)
    device = tf.config.list_physical_devices(kind.upper())[0]
    limit = PART_MIB if kind == "gpu" else None
    parts = [tf.config.LogicalDeviceConfiguration(limit) for _ in range(num_replicas)]
    tf.config.set_logical_device_configuration(device, parts)
    # Its products would differ from float32 by 1e-3, and more with another batch.
    tf.config.experimental.enable_tensor_float_32_execution(enabled=False)
    keras.utils.set_random_seed(7)
    names = [f"{kind.upper()}:{index}" for index in range(num_replicas)]
    repl = replicator.create("in_graph", num_replicas=num_replicas, devices=names)
    size = GLOBAL_BATCH_SIZE // num_replicas
    images = tf.random.stateless_normal([GLOBAL_BATCH_SIZE, 16, 16, 3], [1, 2])
    labels = tf.range(GLOBAL_BATCH_SIZE) % 10
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9))
        optimizer.build(model.trainable_variables)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                y, logits, from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return replicator.all_mean(loss)

    split = [slice(r * size, (r + 1) * size) for r in range(num_replicas)]
    x = replicator.PerReplica([images[part] for part in split])
    y = replicator.PerReplica([labels[part] for part in split])
    for _ in range(NUM_STEPS):
        loss = repl.run(step, (x, y))
        values = loss.values if isinstance(loss, replicator.PerReplica) else [loss]
        sys.stdout.write(f"{float(values[0]):.9f}\n")


# Elastic jobs.
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


def train_elastically(folder, num_steps, backend):
    """Logs what each step has read, in a folder."""
    options = {"heartbeat_timeout_sec": 5.0} if backend == "multi_worker" else {}
    repl = replicator.create(backend, **options)
    folder = pathlib.Path(folder)
    weights = train(repl, folder, int(num_steps))
    text = json.dumps([weight.tolist() for weight in weights])
    (folder / "weights.json").write_text(text)


PROGRAMS = {
    program.__name__: program
    for program in (
        count_kernels,
        determined_training,
        flat,
        one_core_member,
        onednn_rules,
        save_without_end,
        train_elastically,
        two_on_one,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
