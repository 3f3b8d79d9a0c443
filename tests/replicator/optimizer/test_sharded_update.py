"""sharded_update: the same numbers, a share of the work and of the memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import NUM_FEATURES, NUM_OUTPUTS, Training, copies

import replicator

NUM_REPLICAS = 4


def _model():
    """Two layers, whose four variables have an owner each."""
    layers = [
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.Dense(4 * NUM_OUTPUTS),
        keras.layers.Reshape((4, NUM_OUTPUTS)),
        keras.layers.GlobalAveragePooling1D(),
    ]
    return keras.Sequential([keras.Input((NUM_FEATURES,)), *layers])


def _trained(repl, make_optimizer, last, **options):
    training = Training(repl, _model, make_optimizer, **options)
    training.run_between(0, last)
    return training


def _values(training):
    variables = [*training.model.trainable_variables, *training.optimizer.variables]
    return [np.asarray(v) for v in variables]


def _check_same(expected, got):
    for want, value in zip(_values(expected), _values(got), strict=True):
        np.testing.assert_array_equal(want, value)


def _checkpoint(training):
    """Of TensorFlow, so without the help of this library."""
    return tf.train.Checkpoint(
        model=training.model, optimizer=training.optimizer.wrapped
    )


MAKERS = {
    "fused momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "fused adam": lambda: keras.optimizers.Adam(0.01),
    "keras with decay and averages": lambda: keras.optimizers.AdamW(
        0.01, use_ema=True, ema_overwrite_frequency=2
    ),
    "keras that clips": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "keras with factors": lambda: keras.optimizers.Adafactor(0.01),
    "keras that accumulates": lambda: keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2
    ),
}


@pytest.fixture(scope="module")
def unsharded():
    """Trainings on all batches that others are compared with, by optimizer."""
    trained = {}

    def train(name):
        if name not in trained:
            trained[name] = _trained(copies(), MAKERS[name], 4)
        return trained[name]

    return train


@pytest.fixture(scope="module")
def sharded():
    return _trained(copies(), MAKERS["fused adam"], 1, sharded_update=True)


# Each has an update that no other one has: a kernel, decay and averages of all
# variables, and a norm over the gradients of all owners.
IN_SHORT = ("fused adam", "keras with decay and averages", "keras that clips")


@pytest.mark.parametrize(
    "name",
    [
        name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.full)
        for name in MAKERS
    ],
)
def test_every_bit_is_that_of_the_unsharded_update(unsharded, name):
    """Weights and state, also over several steps in one dispatch."""
    sharded = _trained(copies(), MAKERS[name], 2, sharded_update=True)

    sharded.run_between(2, 4, num_steps_per_run=2)

    _check_same(unsharded(name), sharded)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulation_steps": 2, "loss_scale": "dynamic", "global_clipnorm": 0.1},
        pytest.param(
            {"loss_scale": "dynamic", "global_clipnorm": 0.1}, marks=pytest.mark.full
        ),
        pytest.param(
            {"accumulation_steps": 2, "loss_scale": "dynamic"}, marks=pytest.mark.full
        ),
    ],
    ids="+".join,
)
def test_updates_in_branches_are_those_of_the_unsharded(options):
    """One owner takes the branch for all, without kernels; others get its values."""
    make = MAKERS["fused adam"]
    unsharded = _trained(copies(), make, 4, **options)

    sharded = _trained(copies(), make, 4, sharded_update=True, **options)

    for want, value in zip(_values(unsharded), _values(sharded), strict=True):
        np.testing.assert_allclose(want, value, rtol=2e-4, atol=1e-6)


def test_separate_memories_give_the_same(separate, unsharded):
    """Gradients are then bucketed by owner, and results have far to go."""
    make = MAKERS["fused adam"]

    sharded = _trained(separate(NUM_REPLICAS), make, 4, sharded_update=True)

    _check_same(unsharded("fused adam"), sharded)
    plans = next(p for _, p in sharded.repl._programs.items()).plans
    assert {0, 1, 2, 3} == {b.owner for plan in plans for b in plan.buckets}


def test_state_takes_a_share_of_the_memory(unsharded, sharded):
    """The fullest device has at most 0.3 of what every device had, and no copies."""
    before, after = (
        training.repl._table.bytes_by_device(training.optimizer.variables[2:])
        for training in (unsharded("fused adam"), sharded)
    )
    total = 2 * sum(w.nbytes for w in _model().get_weights())
    assert [total] * NUM_REPLICAS == list(before.values())
    assert total == sum(after.values())
    assert NUM_REPLICAS == len(after)
    assert max(after.values()) <= 0.48 * total  # the larger of two kernels


def test_each_update_is_emitted_once(sharded):
    """The linked graph has one kernel per variable, not one on every replica."""
    program = next(p for _, p in sharded.repl._programs.items())
    devices = [
        n.device
        for n in program._assembly.copies.nodes()
        if n.op == "ResourceApplyAdam"
    ]
    assert len(sharded.model.trainable_variables) == len(devices)
    assert set(sharded.repl.devices) == set(devices)


def test_an_update_of_all_variables_waits_for_those_of_each():
    """On the replica where it runs, though its edges lead through others."""
    make = MAKERS["keras with decay and averages"]
    training = _trained(copies(), make, 1, sharded_update=True)
    program = next(p for _, p in training.repl._programs.items())
    nodes = {node.name: node for node in program._assembly.copies.nodes()}

    (branch,) = (node for node in nodes.values() if node.op.endswith("If"))
    owning_replica = branch.name.partition("/")[0]
    reached, stack = set(), [branch.name]
    while stack:
        for text in nodes[stack.pop()].input:
            name = text.lstrip("^").partition(":")[0]
            if name in nodes and name not in reached:
                reached.add(name)
                stack.append(name)

    arrived = {
        name
        for name in nodes
        if name.startswith(owning_replica)
        and "/refresh_" in name
        and branch.name not in name
    }
    assert 6 == len(arrived)  # decay and update of the three that others own
    assert arrived <= reached


def test_the_plan_says_who_owns_what(sharded):
    text = sharded.repl.explain()

    for index in range(NUM_REPLICAS):
        assert f"device:CPU:{index} updates 1 variables " in text
    assert "bytes of optimizer state" in text


def test_where_memory_is_shared_there_is_nothing_to_shard(unsharded):
    """One update and one copy, with the option or without; the plan says so."""
    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)

    sharded = _trained(repl, MAKERS["fused adam"], 4, sharded_update=True)

    _check_same(unsharded("fused adam"), sharded)
    assert "replicas share one copy of every variable" in repl.explain()


def test_checkpoints_go_both_ways(tmp_path, unsharded):
    """Saved by one kind and restored into the other, training continues bit by bit."""
    make = MAKERS["fused adam"]
    then = _trained(copies(), make, 2, sharded_update=True)
    for step, is_sharded in ((2, False), (3, True)):
        path = _checkpoint(then).write(str(tmp_path / f"state-{step}"))

        then = _trained(copies(), make, 1, sharded_update=is_sharded)
        _checkpoint(then).read(path).assert_consumed()
        then.run_between(step, step + 1)

    _check_same(unsharded("fused adam"), then)


def test_values_set_outside_reach_all():
    """Weights of all replicas, and state that exists once."""
    make = MAKERS["fused momentum"]
    runs = []
    for is_sharded in (False, True):
        training = _trained(copies(), make, 1, sharded_update=is_sharded)
        weights = [w + 0.5 for w in training.model.get_weights()]
        training.model.set_weights(weights)
        for slot in training.optimizer.variables[2:]:
            slot.assign(slot.value * 2.0)
        training.run_between(1, 3)
        runs.append(training)

    _check_same(*runs)


@pytest.mark.parametrize(("level", "rtol"), [("state", 0), ("parameters", 1e-6)])
def test_reads_and_writes_stay_in_order(level, rtol):
    """A step may read and write an owned variable before and after its update.

    What was read before an update is what it was, wherever it is used.
    """
    results = []
    for sharded_update in (False, level):
        repl = copies()
        with repl.context():
            weights = [tf.Variable(float(i + 1)) for i in range(4)]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.5, momentum=0.5), sharded_update=sharded_update
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
