"""A whole step as a program of XLA: the same numbers, one all-reduce per bucket."""

from __future__ import annotations

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import mirrored_run, mirrored_strategy
from tensorflow.python.eager import context as eager_context

import replicator
from replicator import errors
from replicator.catalog import BACKENDS
from replicator.contract import compiled_steps
from replicator.placement import devices, topology

# XLA sums in another order, which is in the weights after the first update.
ROUNDING = {"rtol": 1e-6, "atol": 1e-7}
NUM_STEPS = 3
ALL_REDUCE = re.compile(r"= .* all-reduce\(")


def make_step(repl):
    """A model with dropout, its optimizer, and a step; as in a program of a user."""
    keras.utils.set_random_seed(4)
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input([6]),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        optimizer = repl.wrap_optimizer(
            keras.optimizers.Adam(0.05), global_clipnorm=1.0
        )
        optimizer.build(model.trainable_variables)

    def step(x):
        noise = replicator.draw(lambda: tf.random.normal(x.shape))
        with tf.GradientTape() as tape:
            found = model(x + noise, training=True)
            loss = tf.reduce_mean(tf.square(found - tf.reduce_sum(x, 1)[:, None]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return {"loss": loss, "x": x}

    return model, step


def train(backend, wrap):
    """Losses and weights after a few steps of one replica on a CPU."""
    options = {} if backend == "single" else {"devices": ["CPU:0"]}
    repl = replicator.create(backend, num_replicas=1, **options)
    model, step = make_step(repl)
    step = wrap(step)
    batch = replicator.PerReplica([tf.reshape(tf.range(24.0), [4, 6]) / 24.0])
    outputs = [repl.run(step, batch) for _ in range(NUM_STEPS)]
    repl.assert_in_sync()
    assert batch[0].numpy().tolist() == outputs[-1]["x"][0].numpy().tolist()
    return (
        [float(output["loss"][0]) for output in outputs],
        [weight.numpy() for weight in model.weights],
    )


@pytest.mark.parametrize(
    "backend", [pytest.param("single", marks=pytest.mark.full), "in_graph"]
)
def test_a_compiled_step_trains_as_without_xla(backend):
    """Losses, weights, statistics, and the numbers that it draws.

    The full run has ``single``, too, which runs a conformance case of compiled steps.
    """
    losses, weights = train(backend, lambda step: step)
    compiled_losses, compiled_weights = train(backend, replicator.CompiledStep)

    assert len(set(losses)) == NUM_STEPS
    np.testing.assert_allclose(compiled_losses, losses, **ROUNDING)
    for found, expected in zip(compiled_weights, weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_step_runs_in_a_loop_of_steps():
    """One dispatch of several steps; each is one program."""
    repl = replicator.create("in_graph", num_replicas=1)
    with repl.context():
        total = tf.Variable(0.0)

    @replicator.CompiledStep
    def step(x):
        total.assign_add(x)
        return total.read_value()

    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.range(1, 10).map(lambda x: tf.cast(x, tf.float32))
    )

    assert 6.0 == float(repl.run(step, inputs, num_steps=3)[0])
    assert 15.0 == float(repl.run(step, inputs, num_steps=2)[0])
    assert 15.0 == float(total)


@pytest.fixture
def on_gpus(monkeypatch):
    """Makes replicas on virtual CPUs that are taken for physical GPUs; to be built."""
    monkeypatch.setattr(devices, "memory", lambda device: device)
    monkeypatch.setattr(devices, "is_gpu", lambda device: True)
    monkeypatch.setattr(devices, "have_virtual_gpus", lambda names: False)
    monkeypatch.setattr(topology.Topology, "has_own_gpus", True)

    def make(num_replicas, **options):
        names = [f"CPU:{index}" for index in range(num_replicas)]
        return replicator.create(
            "in_graph", num_replicas=num_replicas, devices=names, **options
        )

    return make


def programs_of(repl, step, batch):
    """The HLO text of each replica's program, unoptimized, and the plans."""
    specs = tf.nest.map_structure(tf.type_spec_from_value, batch)
    program = repl._build(step, [specs], 1)
    assembly = program._assembly
    context = eager_context.context()
    outer = context.get_function_def(assembly._name)
    calls = {n.name: n for n in outer.node_def if n.op == "StatefulPartitionedCall"}
    found = []
    for replica, name in enumerate(assembly.programs):
        call = calls[f"program_{replica}"]
        assert name == call.attr["f"].func.name
        assert call.attr["_XlaMustCompile"].b
        assert repl.devices[replica] == call.device
        arguments = [
            value_of(assembly, batch, text, outer)
            for text in call.input
            if not text.startswith("^")
        ]
        text = context.get_compiler_ir(
            device_name=repl.devices[replica],
            platform_name=None,
            function_name=name,
            flat_args=arguments,
            captured_inputs=[],
            stage="hlo",
        )
        found.append(text.decode() if isinstance(text, bytes) else text)
    return found, program.plans, outer


def value_of(assembly, batch, text, outer):
    """What an argument of a program is: a variable, a batch, or what was drawn."""
    kind, _, rest = text.partition("_")
    if kind == "capture":
        return assembly.captured[int(rest)]
    if kind == "batch":
        return tf.nest.flatten(batch)[int(rest.partition("_")[2])]
    (node,) = [n for n in outer.node_def if n.name == text.partition(":")[0]]
    assert node.op in {"RandomStandardNormal", "RandomUniform"}, node
    return tf.zeros_like(tf.nest.flatten(batch)[0])


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_the_program_has_one_all_reduce_per_bucket_over_all_replicas(
    on_gpus, num_replicas
):
    """On every device the same, in one group; nothing else crosses devices."""
    repl = on_gpus(num_replicas)
    _, step = make_step(repl)
    texts, plans, outer = programs_of(
        repl, replicator.CompiledStep(step), tf.zeros([4, 6])
    )

    num_buckets = sum(len(plan.buckets) for plan in plans)
    everyone = ",".join(map(str, range(num_replicas)))
    assert num_replicas == len(texts)
    assert num_buckets > 0
    for text in texts:
        lines = [line for line in text.splitlines() if ALL_REDUCE.search(line)]
        assert num_buckets == len(lines)
        for line in lines:
            assert f"replica_groups={{{{{everyone}}}}}" in line
    channels = [re.findall(r"channel_id=(\d+)", text) for text in texts]
    assert num_buckets == len(set(channels[0]))
    assert 1 == len({tuple(each) for each in channels})
    ops = {n.op for n in outer.node_def}
    assert ops <= {"StatefulPartitionedCall", "RandomStandardNormal", "Const"}


def test_programs_of_two_replicas_run_side_by_side(on_gpus):
    """Each on its own copies and batch; without collectives, which CPUs lack."""
    found = {}
    for wrap in (lambda step: step, replicator.CompiledStep):
        repl = on_gpus(2, without_communication=True)
        _, step = make_step(repl)
        step = wrap(step)
        batch = replicator.PerReplica([tf.ones([4, 6]), tf.fill([4, 6], 2.0)])
        outputs = [repl.run(step, batch) for _ in range(NUM_STEPS)]
        found[wrap] = [float(x) for output in outputs for x in output["loss"]]
        assert [2.0] * 6 == outputs[-1]["x"][1][0].numpy().tolist()

    plain, compiled = found.values()
    assert len(plain) == len(set(plain))
    np.testing.assert_allclose(compiled, plain, rtol=1e-4)


def test_no_program_starts_before_all_batches_are_there(on_gpus):
    """It would wait for the others on its device, whose data may have ended."""
    _, step = make_step(repl := on_gpus(2))
    _, _, outer = programs_of(repl, replicator.CompiledStep(step), tf.zeros([4, 6]))

    for node in outer.node_def:
        if node.op == "StatefulPartitionedCall":
            assert {"^batch_0_0", "^batch_1_0"} <= set(node.input)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.float64])
def test_all_floating_types_meet_in_the_program(on_gpus, dtype):
    """Of bfloat16, too, which TensorFlow's own collective does not give to NCCL."""
    repl = on_gpus(2)

    def step(x):
        return replicator.all_mean(x)

    texts, plans, _ = programs_of(
        repl, replicator.CompiledStep(step), tf.zeros([3], dtype)
    )

    assert ["xla"] == [plan.algorithm for plan in plans]
    assert all(1 == len(ALL_REDUCE.findall(text)) for text in texts)


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (replicator.all_gather, None),
        (replicator.all_max, "maximum"),
        (replicator.all_min, "minimum"),
    ],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.int64])
def test_gathers_and_extremes_are_sums_of_rows(on_gpus, call, op, dtype):
    """XLA compiles TensorFlow's sums only: one all-reduce of a row per replica."""
    repl = on_gpus(4)
    texts, plans, _ = programs_of(
        repl, replicator.CompiledStep(functools.partial(call)), tf.zeros([3], dtype)
    )

    assert ["rows"] == [plan.algorithm for plan in plans]
    for text in texts:
        (line,) = [line for line in text.splitlines() if ALL_REDUCE.search(line)]
        assert "[4,3]" in line
        assert op is None or op in text


def test_collectives_that_are_no_all_reduce_are_refused(on_gpus):
    """With the place and the kind."""
    repl = on_gpus(2)
    step = replicator.CompiledStep(lambda x: replicator.broadcast(x, 1))
    with pytest.raises(
        errors.CompiledStepError,
        match=r"^collective #0 of the step, broadcast\(1\) of float32, cannot be "
        r"part of a program of XLA, .*; leave it out of the CompiledStep",
    ):
        repl._build(step, [tf.TensorSpec([3])], 1)


def test_replicas_that_share_a_gpu_cannot_compile_a_step(on_gpus, monkeypatch):
    """NCCL refuses them."""
    monkeypatch.setattr(devices, "have_virtual_gpus", lambda names: True)
    with pytest.raises(
        errors.CompiledStepError, match=r"2 replicas that share GPUs, but XLA reduces"
    ):
        on_gpus(2).run(replicator.CompiledStep(lambda: tf.constant(1.0)))


@pytest.mark.parametrize(
    "name", [n for n, info in BACKENDS.items() if "compiled_steps" in info.lacks]
)
def test_a_backend_without_compiled_steps_says_why(name):
    """From the catalogue, before it does anything."""
    reason = re.escape(BACKENDS[name].lacks["compiled_steps"])
    with pytest.raises(
        errors.CompiledStepError,
        match=rf"is a CompiledStep, which backend '{name}' does not run: {reason}; use "
        r"single, in_graph, or pass the function itself$",
    ):
        compiled_steps.check_backend(
            object.__new__(BACKENDS[name].load()), replicator.CompiledStep(lambda: None)
        )


def test_a_stock_strategy_cannot_compile_an_update_of_keras(monkeypatch):
    """Why it lacks them: should this pass one day, the catalogue is out of date."""
    for module in (mirrored_run, mirrored_strategy):
        monkeypatch.setattr(module, "_is_gpu_device", lambda device: True)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    @tf.function(jit_compile=True)
    def sum_only():
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, weight + 0.0)

    @tf.function(jit_compile=True)
    def update():
        optimizer.apply([tf.ones([2])], [weight])

    run = tf.function(strategy.run)
    assert run.get_concrete_function(sum_only)
    with pytest.raises(RuntimeError, match=r"`merge_call` called while defining"):
        run.get_concrete_function(update)
