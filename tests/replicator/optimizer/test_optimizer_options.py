"""Options of wrap_optimizer, against one device that has none."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cluster_member import check_message

import replicator
from tests.replicator.conftest import make


@pytest.fixture(params=["shared", "copies", "apart"])
def placed(request, separate):
    """Two replicas: one copy of variables, two, or two in memories of their own."""
    if request.param == "apart":
        return separate(2)
    placement = "mirrored" if request.param == "copies" else "shared"
    return make("in_graph_devices", 2, variable_placement=placement)


def test_the_scale_doubles_after_enough_finite_steps(placed, fed):
    run, _, optimizer = fed(placed, loss_scale="dynamic")
    finite = optimizer.loss_scale.num_finite_steps
    finite.assign(2000 - 3)

    scale = optimizer.loss_scale.scale
    seen = [(run(1.0, 1.0), float(scale.numpy())) for _ in range(5)]

    scales = [2.0**15] * 2 + [2.0**16] * 3
    assert list(zip([0.0, -1.0, -2.0, -3.0, -4.0], scales, strict=True)) == seen
    assert 2 == int(finite.numpy())


def test_a_call_that_is_not_finite_is_not_accumulated(placed, fed):
    run, _, optimizer = fed(placed, loss_scale="dynamic", accumulation_steps=2)

    run(0.5, 0.5)
    assert 1.0 == run(np.inf, 0.0) == run(0.0, np.nan)

    assert 1.0 - (0.5 + 0.25) / 2 == run(0.25, 0.25)
    assert 1 == int(optimizer.iterations.numpy())
    assert 2 == int(optimizer.loss_scale.num_skipped_steps.numpy())


def test_loss_scaling_rescues_float16(separate, fed):
    """Gradients of 1e-8 vanish in float16, unless the loss is scaled."""
    kept = []
    for scale in (None, 2.0**20):
        run, weight, _ = fed(separate(2), compression="float16", loss_scale=scale)
        weight.assign(0.0)
        kept.append(run(1e-8, 1e-8))

    assert 0.0 == kept[0]
    np.testing.assert_allclose(-1e-8, kept[1], rtol=1e-3)


def test_gradients_of_a_loss_that_was_not_scaled_are_refused(in_graph, wrapped):
    weights, optimizer = wrapped(in_graph, loss_scale=8.0)

    def step():
        optimizer.apply_gradients([(tf.ones([2]), weights[0])])

    check_message(
        "^OptimizerOptionError: .*loss_scale=8.0 divides .* "
        r"optimizer.scale_loss\(loss\) in every step",
        lambda: in_graph.run(step),
    )


REFUSED = {
    "accumulation_steps=0 must be an integer of": {"accumulation_steps": 0},
    "global_clipnorm=0 must be a positive number": {"global_clipnorm": 0},
    "global_clipnorm=nan must be a pos": {"global_clipnorm": float("nan")},
    "loss_scale=-1.0 must be .*'dynamic', or None": {"loss_scale": -1.0},
    "sharded_update='all' is not a level: use": {"sharded_update": "all"},
    "compression='int8' is unknown": {"compression": "int8"},
    "global_clipnorm=2.0 was passed .* SGD itself has global_clipnorm=1.0": {
        "of_keras": {"global_clipnorm": 1.0},
        "global_clipnorm": 2.0,
    },
    ".*SGD itself has gradient_accumulation_steps=2.*set only one": {
        "of_keras": {"gradient_accumulation_steps": 2},
        "accumulation_steps": 3,
    },
    ".*SGD itself has loss_scale_factor=8.0, so it would be applied twice": {
        "of_keras": {"loss_scale_factor": 8.0},
        "loss_scale": "dynamic",
    },
    "accumulation_steps=2 does not work with Mirrored": {
        "backend": "tf_mirrored",
        "accumulation_steps": 2,
    },
    "loss_scale='dynamic' does not work .* in a branch": {
        "backend": "tf_mirrored",
        "loss_scale": "dynamic",
    },
}


@pytest.mark.parametrize("said", REFUSED)
def test_an_option_that_cannot_be_is_refused_at_once(said):
    options = dict(REFUSED[said])
    repl = replicator.create(options.pop("backend", "in_graph"), num_replicas=1)
    optimizer = keras.optimizers.SGD(0.1, **options.pop("of_keras", {}))

    check_message(
        f"^OptimizerOptionError: {said}",
        lambda: repl.wrap_optimizer(optimizer, **options),
    )


def test_the_plan_says_which_collectives_wait(separate, fed):
    repl = separate(2)
    run, _, _ = fed(repl, accumulation_steps=4, loss_scale="dynamic")

    run(1.0, 2.0)

    waiting, always = "#1 all_reduce(mean)", "#0 all_reduce(min)"
    lines = {line.partition(":")[0]: line for line in repl.explain().splitlines()}
    assert lines[waiting].endswith(", in calls that update")
    assert "in calls that update" not in lines[always]


def test_an_overflow_on_the_way_waits_for_a_smaller_scale(separate, fed):
    options = {"accumulation_steps": 2, "loss_scale": "dynamic"}
    run, _, optimizer = fed(separate(2), compression="float16", **options)

    seen = [run(3.0, 1.0), run(3.0, 1.0), run(6.0, 6.0)]

    # The mean of sums, halved and scaled: 2^15 * 2, then 2^14 * 5, then 2^13 * 5; only
    # the last is less than 65,504.
    assert [1.0, 1.0, 1.0] == seen
    assert 2.0**13 == float(optimizer.loss_scale.scale.numpy())
    assert 2 == int(optimizer.loss_scale.num_skipped_steps.numpy())
    assert 1.0 - (12.0 + 8.0) / 2 / 4 == run(0.0, 0.0)
    assert 0 == int(optimizer.accumulation.count.numpy())


@pytest.mark.parametrize(
    "options",
    [
        {"loss_scale": 3.0, "accumulation_steps": 3},
        {"loss_scale": 0.7, "global_clipnorm": 0.7},
    ],
)
def test_options_are_exact_in_float64(placed, options):
    """A scale of the loss, and averages over calls, that float32 does not have."""
    grads = np.random.default_rng(0).normal(size=(3, 2, 4))
    with placed.context():
        variable = tf.Variable(np.zeros(4))
        optimizer = placed.wrap_optimizer(keras.optimizers.SGD(1.0), **options)
        optimizer.build([variable])

    def step(grad):
        scale = optimizer.scale_loss(tf.constant(1.0, tf.float64))
        optimizer.apply_gradients([(grad * scale, variable)])

    for given in grads:
        placed.run(step, replicator.PerReplica(list(map(tf.constant, given))))

    means = grads.mean(axis=1)
    if "accumulation_steps" in options:
        means = means.mean(axis=0, keepdims=True)
    limit = options.get("global_clipnorm", np.inf)
    expected = -sum(m * min(1, limit / np.linalg.norm(m)) for m in means)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-13, atol=1e-14)


def test_the_norm_counts_rows_of_a_sparse_gradient_once(in_graph):
    """As that of the dense gradient does; here of one from outside the step."""
    with in_graph.context():
        table = tf.Variable(tf.zeros([3, 1]))
        optimizer = in_graph.wrap_optimizer(
            keras.optimizers.SGD(1.0), global_clipnorm=1
        )
    slices = tf.IndexedSlices(*map(tf.constant, ([[3.0], [4.0]], [0, 0], [3, 1])))

    in_graph.run(lambda: optimizer.apply_gradients([(slices, table)]))

    np.testing.assert_allclose(table.numpy(), [[-1.0], [0.0], [0.0]])
