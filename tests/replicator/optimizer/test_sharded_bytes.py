"""sharded_update: a share of the work and of the memory, and the bytes of a step."""

import functools
import re

import graphs
import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import Training, copies, dense

import replicator

ADAM = functools.partial(keras.optimizers.Adam, 0.01)
NUM_LAYERS = 16


def _deep():
    return dense(*[12] * (NUM_LAYERS - 1), 3)


@functools.cache
def _trained(level):
    training = Training(copies(), _deep, ADAM, sharded_update=level)
    training.run(1)
    return training


def _total(training):
    return sum(w.nbytes for w in training.model.get_weights())


def _moved(training):
    program = graphs.only_program(training.repl)
    return graphs.between_devices(graphs.linked_graph(program))


def _held(training, variables):
    return training.repl._table.bytes_by_device(variables)


@pytest.mark.parametrize("level", ["state", "gradients"])
def test_a_step_moves_what_the_formula_says(level):
    """2 (R - 1) bytes for each of weights: sums to owners, new values to others."""
    training = _trained(level)
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
    training = _trained("parameters")
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
    training = _trained("state")
    held = _held(training, training.optimizer.variables[2:])

    assert 2 * _total(training) == sum(held.values())
    assert 4 == len(held)
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

    held = repl._table.bytes_by_device(optimizer.variables[2:])
    assert [2 * 4 * 130] * 4 == list(held.values())


def test_each_device_has_a_share_of_the_weights_and_of_their_state():
    """The fullest has at most 0.30 of all, with what is gathered at a time."""
    training = _trained("parameters")
    held = _held(training, training.optimizer.variables[2:])
    weights = _held(training, training.model.trainable_variables)
    total = _total(training)
    said = re.search(r"at most (\d+) bytes of weights", training.repl.explain())
    flying = int(said[1])

    assert 4 == len(weights) == len(held)
    assert total == sum(weights.values())
    assert 2 * total == sum(held.values())
    # A gradient is as large as its weight, and on its owner too.
    fullest = max(2 * weights[device] + held[device] for device in held) + flying
    assert fullest <= 0.30 * 4 * total


def test_sums_of_calls_are_on_their_owners():
    options = {"sharded_update": "gradients", "accumulation_steps": 2}
    training = Training(copies(), _deep, ADAM, **options)
    training.run(1)

    sums = [v for v in training.optimizer.variables if "accumulated_g" in v.name]
    held = _held(training, sums)
    assert _total(training) == sum(held.values())
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
    training = _trained("parameters")
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
    training = _trained("gradients")
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
