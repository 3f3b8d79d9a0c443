"""What Keras hangs on tensors and layers is in a pipeline as in one piece."""

import functools
import itertools

import covering
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tiny_models import mean_squared, on_cpus

import replicator
from replicator import PipelineError

PARTS, ROWS, STEPS, WIDTH = 2, 8, 5, 4
TOKENS = np.random.default_rng(1).integers(0, 5, (ROWS, STEPS)) * (
    np.arange(STEPS) < np.arange(1, ROWS + 1)[:, None]
)


@keras.saving.register_keras_serializable()
class Shorter(keras.layers.Layer):
    supports_masking = True

    def call(self, x):
        return x[:, 1:]

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else mask[:, 1:]


class Skip(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x):
        return {"skip": x, "x": 2.0 * x}

    def compute_mask(self, inputs, mask=None):
        return {"skip": None if mask is None else tf.logical_not(mask), "x": mask}


class Through(keras.layers.Layer):
    def __init__(self, kind):
        super().__init__()
        self.inner = kind(WIDTH, return_sequences=True)

    def call(self, both):
        return both | {"x": self.inner(both["x"])}

    def compute_mask(self, inputs, mask=None):
        return mask


class Join(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.mean = keras.layers.GlobalAveragePooling1D()

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, both):
        return self.mean(both["x"]) + self.mean(both["skip"])


def dense(**options):
    return keras.layers.Dense(WIDTH, "tanh", **options)


def penalty(scale):
    return keras.regularizers.L2(scale)


BODIES = {
    "dense": lambda: [dense()],
    "shorter": lambda: [Shorter(), dense()],
    "gru": lambda: [keras.layers.GRU(WIDTH, return_sequences=True)],
    "both": lambda: [
        keras.layers.Bidirectional(keras.layers.LSTM(2, return_sequences=True))
    ],
    "attention": lambda: [Attention()],
    "skip": lambda: [Skip(), Through(keras.layers.GRU), Join()],
    "again": lambda: [keras.layers.Masking(0.3), dense()],
    "regularized": lambda: [
        dense(kernel_regularizer=penalty(0.1), bias_regularizer=penalty(0.2))
    ],
    "constrained": lambda: [dense(kernel_constraint=keras.constraints.MaxNorm(0.4))],
    "frozen norm": lambda: [keras.layers.BatchNormalization(trainable=False)],
    "metric": lambda: [Measured()],
}


class Attention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.inner = keras.layers.MultiHeadAttention(2, 2)

    def call(self, x):
        return self.inner(x, x)


class Measured(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.mean, self.sum = keras.metrics.Mean(), keras.metrics.Sum()
        self.steps = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False,
            aggregation="only_first_replica",
        )  # fmt: skip
        self.average = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation="mean"
        )

    def call(self, x):
        self.mean.update_state(x)
        self.sum.update_state(tf.shape(x)[0])
        self.steps.assign_add(1)
        self.average.assign(0.9 * self.average + 0.1 * tf.reduce_mean(x))
        return x


class Model:
    def __init__(self, bodies, cuts, frozen, loss, *, as_functions):
        keras.utils.set_random_seed(0)
        first = keras.layers.Embedding(5, WIDTH, mask_zero=True)
        layers = [first, *(layer for body in bodies for layer in BODIES[body]())]
        rank = 2 if "skip" in bodies else 3
        self.by_token = loss == "token" and rank == 3
        layers += [] if self.by_token or rank == 2 else [keras.layers.LSTM(WIDTH)]
        layers.append(keras.layers.Dense(3))
        bounds = [0, *sorted(1 + cut % (len(layers) - 1) for cut in cuts), len(layers)]
        parts = [layers[a:b] for a, b in itertools.pairwise(bounds)]
        self.repl = on_cpus(1, len(parts))
        values = TOKENS
        with self.repl.context():
            for k, part in enumerate(parts):
                with replicator.logical_device(k):
                    for layer in part:
                        values = layer(values)
        self.layers = layers
        self.parts = parts
        self.frozen = [layers[place % len(layers)] for place in frozen]
        for layer in self.frozen:
            layer.trainable = False
        self.stages = [functools.partial(chained, part) for part in parts]
        if not as_functions:
            self.stages = list(map(Chain, parts))
        length = values.shape[1] if self.by_token else ()
        shape = (ROWS, length) if self.by_token else (ROWS,)
        self.targets = np.random.default_rng(2).integers(0, 3, shape)

    def loss(self, outputs, targets):
        made = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return 0.5 * made(targets, outputs)

    def variables(self):
        return [v for layer in self.layers for v in layer.trainable_variables]

    def in_one_piece(self):
        with tf.GradientTape() as tape:
            outputs = chained(self.layers, tf.constant(TOKENS))
            loss = self.loss(outputs, self.targets)
            loss += sum(x for layer in self.layers for x in layer.losses)
        return loss, tape.gradient(loss, self.variables())

    def state(self):
        return [
            v.numpy()
            for layer in self.layers
            for v in layer.variables
            if not v.trainable and "seed" not in v.path
        ]

    def in_pipeline(self, **options):
        pipeline = replicator.Pipeline(self.stages, num_microbatches=PARTS, **options)
        return computed(self.repl, pipeline, (TOKENS, self.targets), self.loss)


def computed(repl, pipeline, batch, loss_fn):
    """The loss of a step, and gradients by the path of their variable."""
    paths = []

    def step():
        loss, pairs = pipeline.loss_and_gradients(batch, loss_fn)
        paths[:] = [v.path for _, v in pairs]
        return loss, [tf.zeros([]) if g is None else g for g, _ in pairs]

    loss, gradients = repl.run(step)
    return float(loss[0]), dict(zip(paths, [g[0] for g in gradients], strict=True))


def chained(layers, values):
    for layer in layers:
        values = layer(values)
    return values


class Chain(keras.layers.Layer):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.built = True

    def call(self, values):
        return chained(self.layers, values)

    def compute_mask(self, inputs, mask=None):
        return None  # the last layer has set it


@settings(
    max_examples=covering.num_examples(3, 4),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
)
@given(
    bodies=st.lists(st.sampled_from(sorted(BODIES)), min_size=1, max_size=3),
    cuts=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    frozen=st.lists(st.integers(0, 9), max_size=2),
    loss=st.sampled_from(["token", "example"]),
    as_functions=st.booleans(),
    recompute=st.booleans(),
)
def test_drawn_models_and_cuts(bodies, cuts, frozen, loss, as_functions, recompute):
    if "skip" in bodies:  # ends with a row per example
        bodies = [body for body in bodies if body != "skip"] + ["skip"]
    one, cut = (
        Model(bodies, cuts, frozen, loss, as_functions=as_functions) for _ in range(2)
    )
    expected, gradients = one.in_one_piece()
    found, by_path = cut.in_pipeline(recompute=recompute)

    np.testing.assert_allclose(found, expected, rtol=1e-5)
    names = [v.path for v in cut.variables()]
    assert set(names) == set(by_path)
    for name, gradient in zip(names, gradients, strict=True):
        wanted = 0.0 if gradient is None else tf.convert_to_tensor(gradient)
        np.testing.assert_allclose(by_path[name], wanted, rtol=1e-4, atol=1e-6)
    for own, other in zip(cut.state(), one.state(), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def run(stages, batch, loss_fn, *, is_scaled=False):
    repl = on_cpus(1, 2)
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.0), loss_scale="dynamic")
    loss = loss_fn
    if is_scaled:
        loss = lambda *both: optimizer.scale_loss(loss_fn(*both))  # noqa: E731
    pipeline = stages
    if isinstance(stages, list):
        pipeline = replicator.Pipeline(stages, num_microbatches=PARTS)
    return computed(repl, pipeline, batch, loss)


def built(layer):
    layer.build((None, WIDTH))
    return layer


X = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32)


def test_flags_decide_whenever_they_are_set():
    first, second, critic = (built(dense(name=name)) for name in "abc")
    parent = keras.Sequential([keras.Input((WIDTH,)), second])
    stages = [first, functools.partial(chained, [second])]
    pipeline = replicator.Pipeline(stages, num_microbatches=PARTS)
    critic.trainable = False

    def loss_fn(outputs, targets):
        return mean_squared(critic(outputs), targets)

    both = {"a/kernel", "a/bias", "b/kernel", "b/bias"}
    assert both == set(run(pipeline, (X, X), loss_fn)[1])
    parent.trainable = False
    first.bias.trainable = False
    assert {"a/kernel"} == set(run(pipeline, (X, X), loss_fn)[1])
    parent.trainable = first.bias.trainable = True
    assert both == set(run(pipeline, (X, X), loss_fn)[1])


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_regularizer_is_scaled_as_the_loss(is_scaled):
    first = built(dense(kernel_regularizer=penalty(0.1), name="first"))
    second = built(dense(name="second"))

    with tf.GradientTape() as tape:
        expected = mean_squared(second(first(X)), X) + first.losses[0]
    gradient = tape.gradient(expected, first.kernel.value)
    scale = 2.0**15 if is_scaled else 1.0

    loss, found = run([first, second], (X, X), mean_squared, is_scaled=is_scaled)

    np.testing.assert_allclose(loss, scale * expected, rtol=1e-5)
    np.testing.assert_allclose(
        found["first/kernel"], scale * gradient, rtol=1e-4, atol=1e-6
    )


def test_the_mask_of_a_batch_is_cut_with_it():
    x = np.random.default_rng(3).standard_normal((ROWS, STEPS, WIDTH))
    x = np.float32(x * (TOKENS > 0)[..., None])
    pool, masking = keras.layers.GlobalAveragePooling1D(), keras.layers.Masking()
    repl = on_cpus(1, 1)
    pipeline = replicator.Pipeline([pool], num_microbatches=PARTS)

    def step():
        return pipeline.loss_and_gradients((masking(x), X), mean_squared)[0]

    expected = mean_squared(pool(masking(x)), X)
    np.testing.assert_allclose(repl.run(step)[0], expected, rtol=1e-5)


def refused(message, stages, loss_fn=mean_squared, batch=(X, X)):
    with pytest.raises(PipelineError, match=message):
        run(stages, batch, loss_fn)


class Adds(keras.layers.Layer):
    def __init__(self, *, is_loss):
        super().__init__(name="adds")
        self.is_loss = is_loss
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=is_loss)

    def call(self, x):
        if self.is_loss:
            self.add_loss(tf.reduce_sum(x))
        else:
            self.total.assign_add(tf.reduce_sum(x))
        return x


def test_what_cannot_be_carried_is_refused_by_name():
    own_loss = "stage 1 has a loss of its own in layer 'adds'.* add it in loss_fn$"
    refused(own_loss, [tf.identity, built(Adds(is_loss=True))])
    active = dense(activity_regularizer="l2", name="active")
    refused("stage 0 has a loss of its own in layer 'active'", [built(active), abs])
    total = r"stage 1 assigns 'adds/\w+' in layer 'adds', .*add_weight\(aggregation=\)"
    refused(total, [tf.identity, built(Adds(is_loss=False))])
    state = keras.layers.LSTM(WIDTH, stateful=True, name="memory")
    x = np.zeros((ROWS, STEPS, WIDTH), np.float32)
    state(x[: ROWS // PARTS])
    refused("assigns 'memory/.*' in layer 'memory'", [state, abs], batch=(x, X))
    norm = keras.layers.SpectralNormalization(dense())
    norm(X)
    spectral = functools.partial(norm, training=True)
    refused("stage 0 assigns '.*' in layer 'spectral_norm", [spectral, abs])
    eight = built(dense(name="eight"))
    eight.quantize("float8")
    training = functools.partial(eight, training=True)
    refused("stage 0 has 'eight/.*', whose gradient is its next value", [training, abs])


def test_a_mean_over_what_is_valid_comes_alone():
    """With other terms it is another share of each micro-batch; weights are masks."""
    weights = np.linspace(0.1, 2.0, ROWS, dtype=np.float32)

    def weighted(outputs, both):
        targets, by_row = both
        made = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        return made(targets, outputs, by_row)

    expected = weighted(abs(X), (X, weights))
    loss, _ = run([tf.identity, abs], (X, (X, weights)), weighted)

    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    more = r"loss_fn adds to a loss of Keras that is a mean over what a mask or sample"
    for other in (lambda x: x + 1.0, lambda x: x * x, lambda x: x + x):
        refused(
            more,
            [tf.identity, abs],
            lambda outputs, both, other=other: other(weighted(outputs, both)),
            (X, (X, weights)),
        )
