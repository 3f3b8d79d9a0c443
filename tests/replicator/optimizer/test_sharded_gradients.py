"""sharded_update='gradients' and 'parameters': the same numbers, less on a device."""

import dataclasses
import functools
import re

import keras
import moved_bytes
import numpy as np
import pytest
from tiny_models import Training, copies, dense

import replicator
from replicator import errors
from replicator.engine.analysis import plan

# Of one device, float32, after 20 steps of Adam.
RTOL, ATOL = 1e-5, 1e-6
NUM_STEPS = 20
LEVELS = ("gradients", "parameters")
ADAM = functools.partial(keras.optimizers.Adam, 0.01)


def _deep():
    return dense(12, 12, 12, 3)


@pytest.fixture(scope="module")
def after_one_step():
    @functools.cache
    def trained(level):
        training = Training(copies(), _deep, ADAM, sharded_update=level)
        training.run(1)
        return training

    return trained


@functools.cache
def _alone(num_steps=NUM_STEPS, **options):
    training = Training(replicator.create("single"), _deep, ADAM, **options)
    training.run(num_steps)
    return training.weights()


def _check_close(expected, got, rtol=RTOL, atol=ATOL):
    for want, value in zip(expected, got, strict=True):
        np.testing.assert_allclose(want, value, rtol=rtol, atol=atol)


def _sizes(training):
    return [w.numpy().nbytes for w in training.model.weights]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("num_replicas", [pytest.param(2, marks=pytest.mark.full), 4])
def test_twenty_steps_are_those_of_one_device(level, num_replicas):
    """Adam in float32, with one step and several in a dispatch."""
    training = Training(copies(num_replicas), _deep, ADAM, sharded_update=level)

    training.run_between(0, 10)
    training.run_between(10, NUM_STEPS, num_steps_per_run=5)

    _check_close(_alone(), training.weights())


@pytest.mark.parametrize("level", ["state", "gradients"])
def test_what_each_device_sends_is_counted(after_one_step, level):
    """As ``multi_worker_in_graph`` says it of workers: here each is a replica."""
    repl = after_one_step(level).repl
    program = moved_bytes.only_program(repl)
    apart = dataclasses.replace(repl.topology, memories=repl.topology.primaries)

    sent = plan.sent(
        program.plans, apart, range(repl.num_replicas), program.weight_transfers
    )

    moved = moved_bytes.between_devices(moved_bytes.linked_graph(program))
    assert [moved[device] for device in repl.devices] == [
        of.num_bytes for of in sent.values()
    ]


@pytest.mark.parametrize("level", ["state", "gradients"])
def test_a_step_moves_what_the_formula_says(after_one_step, level):
    """2 (R - 1) bytes for each byte of weights: sums to owners, new values to others.

    The paper has that of both stages, and of data parallelism.
    """
    training = after_one_step(level)
    repl = training.repl

    moved = moved_bytes.between_devices(
        moved_bytes.linked_graph(moved_bytes.only_program(repl))
    )

    total = (repl.num_replicas - 1) * sum(_sizes(training))
    assert 2 * total == sum(moved.values())
    assert (
        f"sharded update: a step moves {total} bytes by reductions and {total} bytes "
        "of weights between devices" in repl.explain()
    )


def test_of_a_clipped_gradient_only_its_norm_leaves_the_owner():
    """With state alone, every device gets every sum; results are the same."""
    moved, weights, said = {}, {}, {}
    for level in ("state", "gradients"):
        repl = copies()
        training = Training(
            repl, _deep, ADAM, sharded_update=level, global_clipnorm=0.05
        )
        training.run(2)
        graph = moved_bytes.linked_graph(moved_bytes.only_program(repl))
        moved[level] = sum(moved_bytes.between_devices(graph).values())
        weights[level], said[level] = training.weights(), repl.explain()

    others, sizes = repl.num_replicas - 1, _sizes(training)
    total = others * sum(sizes)
    assert 3 * total == moved["state"]
    assert f"moves {2 * total} bytes by reductions" in said["state"]
    assert f"moves {total} bytes by reductions" in said["gradients"]
    # Four bytes of each norm, on each other device.
    assert others * (2 * sum(sizes) + 4 * len(sizes)) == moved["gradients"]
    _check_close(weights["state"], weights["gradients"])


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "options",
    [
        {"accumulation_steps": 2, "global_clipnorm": 0.1},
        {"loss_scale": "dynamic", "global_clipnorm": 0.1},
        {"accumulation_steps": 2, "loss_scale": "dynamic"},
    ],
    ids="+".join,
)
def test_updates_that_are_skipped_are_those_of_one_device(level, options):
    """Each owner has a branch of its own, with the kernels of its variables."""
    training = Training(copies(), _deep, ADAM, sharded_update=level, **options)
    training.run(4)

    _check_close(_alone(4, **options), training.weights())
    ops = [
        n.op for n in moved_bytes.only_program(training.repl)._assembly.copies.nodes()
    ]
    assert "ResourceApplyAdam" not in ops


def test_sums_of_calls_are_on_their_owners():
    """accumulation_steps: no device has the sums of all gradients."""
    repl = copies()
    training = Training(
        repl, _deep, ADAM, sharded_update="gradients", accumulation_steps=2
    )
    training.run(1)

    sums = [v for v in training.optimizer.variables if "accumulated_g" in v.name]
    by_device = repl._table.bytes_by_device(sums)
    assert sum(_sizes(training)) == sum(by_device.values())
    assert max(by_device.values()) <= 0.3 * sum(by_device.values())


def test_an_update_by_keras_cannot_be_skipped_by_owner():
    training = Training(
        copies(2),
        "dense",
        "adamw",
        sharded_update="gradients",
        accumulation_steps=2,
    )
    with pytest.raises(
        errors.OptimizerOptionError,
        match=r"sharded_update='gradients' with updates that are skipped .*AdamW here",
    ):
        training.run(1)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "name", ["embedding", "convolution", pytest.param("wide", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("level", LEVELS)
def test_other_models_train_as_on_one_device(level, name):
    """Sparse gradients, and statistics over replicas."""
    results = []
    for repl in (replicator.create("single"), copies(2)):
        training = Training(repl, name, "clipped adamw", sharded_update=level)
        training.run(3)
        results.append(training.weights())

    _check_close(*results, rtol=2e-4, atol=1e-5)


def test_summary_says_which_level_fits(after_one_step):
    """Adam's state is twice the weights: 4 Psi, and less by level."""
    training = after_one_step("gradients")
    total = sum(_sizes(training))

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


@pytest.mark.parametrize("memory", [0, -1, 1.5, "1 GB", True])
def test_what_is_no_memory_is_refused(memory):
    for repl in (copies(2), replicator.create("single")):
        with pytest.raises(ValueError, match=r"device_memory=.* positive integer, the"):
            repl.summary(device_memory=memory)


@pytest.mark.parametrize("backend", ["in_graph", "single", "tf_mirrored"])
def test_where_nothing_has_an_owner_no_level_is_marked(backend):
    """The line says so, and how to get a table; without the argument there is none."""
    repl = replicator.create(backend, num_replicas=1 if backend == "single" else 2)
    assert "no level" not in repl.summary()
    assert repl.summary(2_000).endswith(
        "\nno level of sharded_update is marked for 2,000 bytes: no variable has an "
        "owner; wrap_optimizer(..., sharded_update=...) gives them one where replicas "
        "have copies, once the optimizer is built"
    )


def test_levels_that_a_backend_lacks_are_refused():
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    for level in LEVELS:
        with pytest.raises(
            errors.OptimizerOptionError,
            match=rf"sharded_update='{level}' does not work with .*: all replicas upd",
        ):
            repl.wrap_optimizer(keras.optimizers.SGD(), sharded_update=level)
    split = replicator.create(
        "in_graph",
        num_replicas=2,
        logical_devices_per_replica=2,
        devices=[["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]],
    )
    with pytest.raises(
        errors.OptimizerOptionError, match=r"'parameters' .*: a replica has several"
    ):
        split.wrap_optimizer(keras.optimizers.SGD(), sharded_update="parameters")
