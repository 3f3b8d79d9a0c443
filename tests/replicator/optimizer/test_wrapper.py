"""A wrapped optimizer where Keras' own is expected, whoever wrapped it."""

import copy

import keras
import pytest
import tensorflow as tf
from cluster_member import check_message

import replicator
from replicator import errors


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
        errors.UnsynchronisedUpdateError,
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
        errors.CollectiveContextError, match=r"^apply\(\) was called in cross-replica"
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
    """Other kinds of arguments are in ``tests/programs/arguments``."""
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
