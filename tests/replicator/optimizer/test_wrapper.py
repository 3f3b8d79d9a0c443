"""A wrapped optimizer where Keras' own is expected, and its options."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check_message

import replicator
from tests.replicator.conftest import make


@pytest.mark.parametrize("num_wrapped", [1, 4])
def test_a_step_is_whole_whoever_wrapped_the_optimizer(in_graph, wrapped, num_wrapped):
    """Wrapped for 4 replicas or 1, and run by 1 as for debugging, or by 2."""
    owner = replicator.create("in_graph", num_replicas=num_wrapped)
    for repl in (replicator.create("single"), in_graph):
        weights, optimizer = wrapped(owner)
        pair = tf.constant([1.0, 2.0]), weights[0]

        repl.run(
            lambda optimizer=optimizer, pair=pair: optimizer.apply_gradients([pair])
        )

        assert optimizer.uses_fused_update
        assert [0.5, 1.0] == weights[0].numpy().tolist()


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_variable_may_get_its_first_gradient_later(
    in_graph, wrapped, accumulation_steps
):
    adam, options = keras.optimizers.Adam, {"accumulation_steps": accumulation_steps}
    weights, optimizer = wrapped(in_graph, adam, **options)
    ones = tf.ones([2])

    for grads in ([ones, None], [None, ones]):
        pairs = list(zip(grads, weights, strict=True))
        for _ in range(accumulation_steps):
            in_graph.run(lambda pairs=pairs: optimizer.apply_gradients(pairs))

    assert 1.0 - 0.5 == pytest.approx(float(weights[0][0]), rel=1e-5)
    assert float(weights[1][0]) < 3.0


def _clip_global(grads):
    return tf.clip_by_global_norm(grads, 1.0)[0]


def _clip_norm(grads):
    return [tf.clip_by_norm(grad, 1.0) for grad in grads]


def _clip_value(grads):
    return [tf.clip_by_value(grad, -1.0, 1.0) for grad in grads]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("accumulation_steps", [1, 2])
@pytest.mark.parametrize(
    ("clip", "instead"),
    [
        (_clip_global, r"by wrap_optimizer\(optimizer, global_clipnorm=c\)"),
        (_clip_norm, "by clipnorm=c of the Keras optimizer"),
        (_clip_value, "by clipvalue=c of the Keras optimizer"),
    ],
    ids=["global norm", "norm", "value"],
)
def test_gradients_that_each_replica_clipped_are_refused(
    in_graph, wrapped, per_replica, clip, instead, accumulation_steps
):
    weights, optimizer = wrapped(in_graph, accumulation_steps=accumulation_steps)

    def step(x):
        grads = clip([tf.stack([x, x]), tf.stack([x, 0.0])])
        optimizer.apply(grads, weights)

    with pytest.raises(
        replicator.UnsynchronisedUpdateError,
        match=rf"clipped by tf.clip_by_\w+ at \S+test_wrapper.py:\d+: .*clip_by.* "
        rf"before they are averaged.*clip the average, {instead}; if each replica",
    ):
        in_graph.run(step, per_replica([3.0, 5.0]))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (lambda grads: _clip_global(replicator.all_mean(grads)), 1.5),
        (lambda grads: replicator.all_mean(_clip_global(grads)), 1.375),
    ],
    ids=["average first", "clip first"],
)
def test_who_writes_the_average_may_clip(
    in_graph, wrapped, per_replica, order, expected
):
    weights, optimizer = wrapped(in_graph)

    def step(x):
        optimizer.apply(order([tf.stack([x, 0.0])]), weights[:1])

    in_graph.run(step, per_replica([-0.5, -2.5]))

    assert expected == float(weights[0][0])


def test_variables_may_be_those_it_was_built_with(repl_once, per_replica, wrapped):
    weights, optimizer = wrapped(repl_once)
    optimizer.build(weights)

    def step(x):
        optimizer.apply([tf.stack([x, x]), tf.stack([2 * x, 0.0])])

    num_replicas = repl_once.num_replicas
    repl_once.run(step, per_replica([float(r) for r in range(num_replicas)]))

    mean = (num_replicas - 1) / 2
    assert [1.0 - 0.5 * mean, 2.0 - 0.5 * mean] == pytest.approx(weights[0].numpy())
    assert [3.0 - mean, 4.0] == pytest.approx(weights[1].numpy())


def test_an_update_outside_a_step_is_refused_in_this_spelling(in_graph, wrapped):
    weights, optimizer = wrapped(in_graph)

    with pytest.raises(
        replicator.CollectiveContextError,
        match=r"^apply\(\) was called in cross-replica",
    ):
        optimizer.apply([tf.constant([1.0, 1.0])], weights[:1])


class _LabelledOptimizer(replicator.ReplicatedOptimizer):
    def __init__(self, optimizer):
        self.label = "first"
        super().__init__(optimizer)


def test_attributes_belong_to_who_defined_them():
    inner = keras.optimizers.SGD(0.5)
    optimizer = _LabelledOptimizer(inner)
    own = dict(vars(optimizer))

    optimizer.label = "second"
    optimizer.uses_fused_update = True
    optimizer.learning_rate = 0.25

    assert own | {"label": "second", "uses_fused_update": True} == vars(optimizer)
    assert not hasattr(inner, "label")
    assert not hasattr(inner, "uses_fused_update")
    assert 0.25 == float(inner.learning_rate) == float(optimizer.learning_rate)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = optimizer.no_such_thing
    # Looking up attributes of a half-made copy ends.
    assert 0.25 == float(copy.copy(optimizer).learning_rate)


def _slices(values, dense_shape=None):
    return tf.IndexedSlices(values, tf.constant([0]), dense_shape)


def _apply_one(grad):
    return lambda optimizer, weights: optimizer.apply_gradients([(grad(), weights[0])])


_GRAD = [1.0, 1.0]
REFUSED = {
    r"^ValueError: .*gradient of 'first.*' has shape \(\), but the variable has shape "
    r"\(2,\)": _apply_one(lambda: 1.0),
    r"^ValueError: .*has shape \(3,\), but the variable has shape \(2,\); pass them "
    "in": (_apply_one(lambda: _slices(tf.ones([1]), tf.constant([3])))),
    r"^ValueError: .*has shape \(None, 4\), but the variable has shape \(2,\); pass "
    "them in": (_apply_one(lambda: _slices(tf.ones([1, 4])))),
    r"^TypeError: .*apply\(\) got pairs of gradient and variable; write "
    r"optimizer.apply\(": (
        lambda o, w: o.apply(zip([_GRAD], w[1:], strict=True), w[1:])
    ),
    r"^ValueError: .*apply\(\) got 1 gradients for 2 variables; pass one per "
    "variable, in": (lambda o, w: o.apply([_GRAD], w)),
    "^ValueError: .*got gradients but no variables, and the optimizer was not built": (
        lambda o, _: o.apply([_GRAD, _GRAD])
    ),
    "^ValueError: .*got no gradient: all of them are None": lambda o, _: o.apply(
        [], []
    ),
    r"^OptimizerOptionError: .*stateless_apply\(\).*optimizer.apply\(grad": (
        lambda o, w: o.stateless_apply([], [_GRAD], w[:1])
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_update_of_variables_is_refused(wrapped, said):
    """Other kinds of arguments are in ``tests/programs/test_any_argument.py``."""
    repl = replicator.create("in_graph", num_replicas=2)
    weights, optimizer = wrapped(repl)

    check_message(said, lambda: repl.run(lambda: REFUSED[said](optimizer, weights)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (keras.optimizers.Adam, {}),
        (keras.optimizers.RMSprop, {}),
        (keras.optimizers.SGD, {"accumulation_steps": 2}),  # of the sum
    ],
)
def test_a_variable_without_state_is_refused(in_graph, wrapped, kind, options):
    weights, optimizer = wrapped(in_graph, kind, **options)
    with in_graph.context():
        optimizer.build(weights[1:])

    with pytest.raises(
        ValueError, match=r"got the variable 'first.*', but the optimizer was built"
    ):
        in_graph.run(lambda: optimizer.apply_gradients([(tf.ones([2]), weights[0])]))


def test_slices_may_leave_out_the_shape_of_the_whole(in_graph, wrapped):
    weights, optimizer = wrapped(in_graph)

    def step():
        optimizer.apply_gradients([(_slices(tf.constant([2.0])), weights[0])])

    in_graph.run(step)

    assert [0.0, 2.0] == weights[0].numpy().tolist()


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


REFUSED_OPTIONS = {
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


@pytest.mark.parametrize("said", REFUSED_OPTIONS)
def test_an_option_that_cannot_be_is_refused_at_once(said):
    options = dict(REFUSED_OPTIONS[said])
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
