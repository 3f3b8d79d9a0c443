"""sharded_update beside what is drawn: memories, order, refusals, bytes of a step.

That every level trains as one device does, with all options and on other replicas, is
drawn in ``tests/fuzz`` and asked of every backend in ``tests/conformance``.
"""

import collections
import functools
import re

import graphs
import keras
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check_message
from tiny_models import Training, copies, dense

import replicator

NUM_REPLICAS = 4
MADE = keras.optimizers


def _adam():
    return MADE.Adam(0.01)


def _deep():
    return dense(12, 12, 12, 3)


def _trained(repl, last, **options):
    training = Training(repl, _deep, _adam, **options)
    training.run_between(0, last)
    return training


def _values(training):
    variables = [*training.model.trainable_variables, *training.optimizer.variables]
    return [np.asarray(v) for v in variables]


def _check_close(expected, got, rtol=1e-5, atol=1e-6):
    for want, value in zip(expected, got, strict=True):
        np.testing.assert_allclose(value, want, rtol=rtol, atol=atol)


def _check_same(expected, got):
    _check_close(_values(expected), _values(got), rtol=0, atol=0)


@functools.cache
def _unsharded():
    return _trained(copies(), 4)


@functools.cache
def _alone(num_steps, **options):
    repl = replicator.create("single")
    return _trained(repl, num_steps, **options).weights()


def test_separate_memories_give_the_same(separate):
    sharded = _trained(separate(NUM_REPLICAS), 4, sharded_update=True)

    _check_same(_unsharded(), sharded)
    plans = next(program for _, program in sharded.repl._programs.items()).plans
    assert {0, 1, 2, 3} == {b.owner for plan in plans for b in plan.buckets}


def test_where_memory_is_shared_there_is_nothing_to_shard():
    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)

    sharded = _trained(repl, 4, sharded_update="parameters")

    _check_same(_unsharded(), sharded)
    assert "replicas share one copy of every variable" in repl.explain()
    assert "gathers" not in repl.explain()


def _checkpoint(training):
    return tf.train.Checkpoint(
        model=training.model, optimizer=training.optimizer.wrapped
    )


def test_checkpoints_of_tensorflow_go_both_ways(tmp_path):
    then = _trained(copies(), 2, sharded_update=True)
    for step, is_sharded in ((2, False), (3, True)):
        path = _checkpoint(then).write(str(tmp_path / f"state-{step}"))

        then = _trained(copies(), 1, sharded_update=is_sharded)
        _checkpoint(then).read(path).assert_consumed()
        then.run_between(step, step + 1)

    _check_same(_unsharded(), then)


def test_checkpoints_go_from_any_level_to_any(tmp_path):
    ways = [
        (copies(2), "gradients"),
        (copies(4), "parameters"),
        (replicator.create("single"), False),
        (copies(2), "parameters"),
    ]
    for place, (repl, level) in enumerate(ways):
        training = Training(repl, _deep, _adam, sharded_update=level)
        manager = training.make_manager(tmp_path)
        if place:
            training.run(1)  # forgotten by restoring
            assert place == manager.restore().step
        training.run_between(place, place + 1)
        manager.save()

    _check_close(_alone(len(ways)), training.weights())


@pytest.mark.parametrize(("level", "rtol"), [("state", 0), ("parameters", 1e-6)])
def test_reads_and_writes_stay_in_order(level, rtol):
    results = []
    for sharded_update in (False, level):
        repl = copies()
        with repl.context():
            weights = [tf.Variable(float(i + 1)) for i in range(4)]
            optimizer = repl.wrap_optimizer(
                MADE.SGD(0.5, momentum=0.5), sharded_update=sharded_update
            )

        def step(x, weights=weights, optimizer=optimizer):
            seen = []
            for _ in range(2):
                old = [w.read_value() for w in weights]
                seen += [w * x for w in old]
                optimizer.apply_gradients([(w * x, w) for w in weights])
                seen += [w * x for w in weights]
                seen += [w * x + seen[-1] for w in old]
                weights[1].assign_add(weights[2] * weights[3])
                seen += [w * x for w in weights]
                weights[3].assign(weights[1])
            slot = optimizer.wrapped.momentums[2] * x
            return tf.stack([*seen, slot])

        x = replicator.PerReplica([tf.constant(r + 1.0) for r in range(NUM_REPLICAS)])
        outs = [np.stack(repl.run(step, x).values) for _ in range(3)]
        repl.assert_in_sync()
        results.append((outs, [w.numpy() for w in weights]))

    for whole, sharded in zip(*results, strict=True):
        np.testing.assert_allclose(sharded, whole, rtol)


def test_variables_of_owners_read_and_write_outside_steps():
    trained = _trained(copies(), 1, sharded_update="parameters")
    variable = trained.model.trainable_variables[4]
    devices = {v.value.device for v in trained.model.trainable_variables}
    assert set(trained.repl.devices) == devices

    before = variable.numpy()
    variable.assign(before + 1.0)
    seen = trained.repl.run(lambda: tf.reduce_sum(variable))
    outside = tf.function(lambda: tf.reduce_sum(variable))()

    for value in (*seen.values, outside):
        np.testing.assert_allclose(before.sum() + before.size, value, rtol=1e-5)
    predicted = trained.model.predict(np.ones([2, 12], np.float32), verbose=0)
    assert (2, 3) == predicted.shape


def test_steps_of_before_use_the_variables_where_they_are():
    repl = copies(2)
    with repl.context():
        weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
        optimizer = repl.wrap_optimizer(MADE.SGD(0.5), sharded_update="parameters")
    before = tf.function(lambda: tf.tensordot(weights[0], weights[1], axes=1))
    before()

    def evaluate():
        return tf.add_n(weights)

    def step():
        optimizer.apply_gradients([(tf.ones([2]), w) for w in weights])

    for num_updates in range(3):
        for value in repl.run(evaluate).values:
            np.testing.assert_array_equal(
                np.float32([4.0, 6.0]) - num_updates, value.numpy()
            )
        repl.run(step)
    with pytest.raises(tf.errors.OpError):
        before()


def _on_a_stock_strategy(level):
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    repl.wrap_optimizer(MADE.SGD(), sharded_update=level)


def _on_split_replicas(level):
    split = replicator.create(
        "in_graph",
        num_replicas=2,
        logical_devices_per_replica=2,
        devices=[["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]],
    )
    split.wrap_optimizer(MADE.SGD(), sharded_update=level)


def _skipped_by_keras(level):
    options = {"sharded_update": level, "accumulation_steps": 2}
    Training(copies(2), "dense", "adamw", **options).run(1)


REFUSED = {
    "'gradients' does not work with .*: all replicas upd": _on_a_stock_strategy,
    "'parameters' does not work with .*: all replicas u": _on_a_stock_strategy,
    "'parameters' .*: a replica has several": _on_split_replicas,
    "'gradients' with updates that are skipped .*AdamW here": _skipped_by_keras,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_a_level_cannot_do_is_refused(said):
    level = said.split("'")[1]

    check_message(
        f"^OptimizerOptionError: .*sharded_update={said}", lambda: REFUSED[said](level)
    )


ADAM = functools.partial(keras.optimizers.Adam, 0.01)
NUM_LAYERS = 16


def _sixteen_layers():
    return dense(*[12] * (NUM_LAYERS - 1), 3)


@functools.cache
def _after_a_step(level):
    training = Training(copies(), _sixteen_layers, ADAM, sharded_update=level)
    training.run(1)
    return training


def _total(training):
    return sum(w.nbytes for w in training.model.get_weights())


def _moved(training):
    program = graphs.only_program(training.repl)
    return graphs.between_devices(graphs.linked_graph(program))


def _held(variables):
    """By device, the bytes of variables, each on that of its owner."""
    held = collections.Counter()
    for variable in variables:
        held[variable.value.device] += variable.numpy().nbytes
    return dict(sorted(held.items()))


def _with_copies(repl):
    """By device, the bytes of all variables and of their copies."""
    told = re.findall(r"\n  CPU:\d: ([\d,]+) bytes", repl.summary())
    return [int(size.replace(",", "")) for size in told]


@pytest.mark.parametrize("level", ["state", "gradients"])
def test_a_step_moves_what_the_formula_says(level):
    """2 (R - 1) bytes for each of weights: sums to owners, new values to others."""
    training = _after_a_step(level)
    total = (training.repl.num_replicas - 1) * _total(training)

    assert 2 * total == sum(_moved(training).values())
    assert (
        f"sharded update: a step moves {total} bytes by reductions and {total} bytes "
        "of weights between devices" in training.repl.explain()
    )


def test_of_a_clipped_gradient_only_its_norm_leaves_the_owner():
    found, said = {}, {}
    for level in ("state", "gradients"):
        options = {"sharded_update": level, "global_clipnorm": 0.05}
        training = Training(copies(), "deep", ADAM, **options)
        training.run(1)
        found[level] = sum(_moved(training).values())
        said[level] = training.repl.explain()

    sizes = [w.nbytes for w in training.model.get_weights()]
    total = 3 * sum(sizes)
    assert 3 * total == found["state"]
    assert f"moves {2 * total} bytes by reductions" in said["state"]
    assert f"moves {total} bytes by reductions" in said["gradients"]
    # Four bytes of each norm, on each other device.
    assert 2 * total + 3 * 4 * len(sizes) == found["gradients"]


def test_a_step_of_owned_parameters_moves_what_the_formula_says():
    """R - 1 times: each sum once, each variable twice, but what is kept in between.

    The first layer has no gradient of its input, biases are used forward only, and the
    last layers go backward while their weights are there.
    """
    training = _after_a_step("parameters")
    total = _total(training)
    text = training.repl.explain()
    found = re.search(
        r"moves (\d+) bytes by reductions and (\d+) bytes of weights between devices, "
        r"in \d+ gathers ",
        text,
    )
    by_sums, by_weights = map(int, found.groups())

    assert by_sums + by_weights == sum(_moved(training).values())
    assert 3 * total == by_sums
    kernels = [w.nbytes for w in training.model.get_weights() if w.ndim == 2]
    assert total + sum(kernels[1:-2]) <= by_weights / 3 <= total + sum(kernels[1:])


def test_state_takes_a_share_of_the_memory():
    training = _after_a_step("state")
    held = _held(training.optimizer.variables[2:])

    total = _total(training)
    assert 2 * total == sum(held.values())
    assert 4 == len(held)
    # All have the weights, the learning rate and how many updates there were.
    assert [total + 12 + size for size in held.values()] == _with_copies(training.repl)
    assert max(held.values()) <= 0.3 * sum(held.values())
    text = training.repl.explain()
    for index in range(4):
        assert re.search(rf"device:CPU:{index} updates \d+ variables ", text)
    assert "bytes of optimizer state" in text


def test_owners_are_balanced_by_bytes():
    repl = copies()
    with repl.context():
        weights = [tf.Variable(tf.ones([size])) for size in range(30, 110, 10)]
        optimizer = repl.wrap_optimizer(ADAM(), sharded_update=True)
    optimizer.build(weights)

    held = _held(optimizer.variables[2:])
    assert [2 * 4 * 130] * 4 == list(held.values())


def test_each_device_has_a_share_of_the_weights_and_of_their_state():
    """The fullest has at most 0.30 of all, with what is gathered at a time."""
    training = _after_a_step("parameters")
    held = _held(training.optimizer.variables[2:])
    weights = _held(training.model.trainable_variables)
    total = _total(training)
    said = re.search(r"at most (\d+) bytes of weights", training.repl.explain())
    flying = int(said[1])

    assert 4 == len(weights) == len(held)
    assert total == sum(weights.values())
    assert 2 * total == sum(held.values())
    both = [weights[device] + held[device] for device in held]
    assert [12 + size for size in both] == _with_copies(training.repl)
    # A gradient is as large as its weight, and on its owner too.
    fullest = max(2 * weights[device] + held[device] for device in held) + flying
    assert fullest <= 0.30 * 4 * total


def test_sums_of_calls_are_on_their_owners():
    options = {"sharded_update": "gradients", "accumulation_steps": 2}
    training = Training(copies(), _sixteen_layers, ADAM, **options)
    training.run(1)

    sums = [v for v in training.optimizer.variables if "accumulated_g" in v.name]
    held, total = _held(sums), _total(training)
    assert total == sum(held.values())
    # Beside both moments; all have the weights and three scalars.
    owned = [total + 20 + 3 * size for size in held.values()]
    assert owned == _with_copies(training.repl)
    assert max(held.values()) <= 0.3 * sum(held.values())
    program = graphs.only_program(training.repl)
    # Each owner has a branch of its own, with the kernels of its variables.
    assert "ResourceApplyAdam" not in {n.op for n in program._assembly.copies.nodes()}


def _reached(roots, before):
    found, stack = set(), list(roots)
    while stack:
        for name in before(stack.pop()):
            if name not in found:
                found.add(name)
                stack.append(name)
    return found


def test_an_update_of_all_variables_waits_for_those_of_each():
    """On the replica where it runs, though its edges lead through others."""

    def average():
        return keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=2)

    training = Training(copies(), "dense", average, sharded_update=True)
    training.run(1)
    copied = graphs.only_program(training.repl)._assembly.copies
    nodes = {node.name: node for node in copied.nodes()}
    (branch,) = (node.name for node in nodes.values() if node.op.endswith("If"))
    owner = branch.partition("/")[0]

    def before(name):
        inputs = (text.lstrip("^").partition(":")[0] for text in nodes[name].input)
        return [each for each in inputs if each in nodes]

    arrived = {
        name
        for name in nodes
        if name.startswith(owner) and "/refresh_" in name and branch not in name
    }
    assert 6 == len(arrived)  # decay and update of the three that others own
    assert arrived <= _reached([branch], before)


def test_gathers_wait_for_the_layer_before_the_last():
    """In the linked graph, on every replica: no other weights are there meanwhile."""
    training = _after_a_step("parameters")
    program = graphs.only_program(training.repl)
    graph = graphs.linked_graph(program)
    gathers, copied = program.analysis.gathers, program._assembly.copies

    def before(name):
        op = graph.get_operation_by_name(name)
        return [each.name for each in (*op.control_inputs, *(x.op for x in op.inputs))]

    count = 0
    for replica in range(training.repl.num_replicas):
        for gather in gathers:
            uses = {
                copied.name(replica, use)
                for earlier in gathers
                if earlier.layer == gather.layer - 2
                for use in earlier.uses
            }
            assert uses <= _reached([copied.name(replica, gather.read)], before)
            count += len(uses)
    assert count >= 4 * 2 * (NUM_LAYERS - 2)


def test_mixed_precision_gathers_what_it_casts_twice():
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")

    def model():
        layers = [keras.layers.Dense(12, dtype=policy) for _ in range(6)]
        return keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(3)])

    training = Training(copies(2), model, ADAM, sharded_update="parameters")
    losses = training.run(2)
    alone = Training(replicator.create("single"), model, ADAM)

    np.testing.assert_allclose(alone.run(2), losses, rtol=0.02)
    gathers = re.search(r"in (\d+) gathers ", training.repl.explain())
    assert int(gathers[1]) > len(training.model.trainable_variables)


def test_summary_says_which_level_fits():
    """Adam's state is twice the weights: 4 Psi, and less by level."""
    training = _after_a_step("gradients")
    total = _total(training)

    text = training.repl.summary(device_memory=2 * total)

    found = {
        level: (int(size.replace(",", "")), fits)
        for level, size, fits in re.findall(
            r"^  (\w+) .* ([\d,]+)  (fits|does not fit) ", text, re.MULTILINE
        )
    }
    assert ["none", "state", "gradients", "parameters"] == list(found)
    assert (4 * total, "does not fit") == found["none"]
    assert "does not fit" == found["state"][1]
    assert "fits" == found["gradients"][1]
    sizes = [size for size, _ in found.values()]
    assert sorted(sizes, reverse=True) == sizes
    assert sizes[3] <= 0.3 * sizes[0]


def test_the_table_of_levels_is_of_the_fullest_device():
    repl = copies()
    with repl.context():
        weights = [tf.Variable(tf.ones([size])) for size in (100, 10, 10, 10)]
        optimizer = repl.wrap_optimizer(ADAM(), sharded_update=True)
    optimizer.build(weights)

    text = repl.summary(device_memory=1_000)

    # Weights, gradients and twice as much state, of 4 bytes each.
    assert re.search(r"^  parameters .* 1,600  does not fit ", text, re.MULTILINE)


@pytest.mark.parametrize("backend", ["in_graph", "single", "tf_mirrored"])
def test_where_nothing_has_an_owner_no_level_is_marked(backend):
    repl = replicator.create(backend, num_replicas=1 if backend == "single" else 2)
    assert "no level" not in repl.summary()
    assert repl.summary(2_000).endswith(
        "\nno level of sharded_update is marked for 2,000 bytes: no variable has an "
        "owner; wrap_optimizer(..., sharded_update=...) gives them one where replicas "
        "have copies, once the optimizer is built"
    )
    for memory in (0, -1, 1.5, "1 GB", True):
        with pytest.raises(ValueError, match=r"device_memory=.* positive integer, the"):
            repl.summary(device_memory=memory)
