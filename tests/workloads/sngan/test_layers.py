"""The parts of SN-GAN on one replica and on two: norms, losses, published sizes."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_programs import published

import replicator
from workloads import WORKLOADS, compiled
from workloads import sngan as networks

CPUS = ["CPU:0", "CPU:1"]


@pytest.fixture(
    params=[
        pytest.param(("in_graph", {}), marks=pytest.mark.full),
        ("in_graph", {"devices": CPUS, "variable_placement": "mirrored"}),
        pytest.param(("tf_mirrored", {"devices": CPUS}), marks=pytest.mark.full),
    ],
    ids=["in_graph", "in_graph_mirrored", "tf_mirrored"],
)
def two_replicas(request):
    backend, options = request.param
    return replicator.create(backend, num_replicas=2, **options)


RTOL_FLOAT32 = 1e-5  # some dozen roundings of dot products


def numpys_step(matrix, u):
    """Miyato et al. 2018, algorithm 1, with one step."""
    v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
    u = matrix @ v / np.linalg.norm(matrix @ v)
    return float(u @ matrix @ v), u


def matrix_of(kernel):
    return np.moveaxis(kernel, -1, 0).reshape(kernel.shape[-1], -1)


def test_a_power_step_is_the_papers():
    generator = np.random.default_rng(0)
    matrix, u = generator.normal(size=(5, 7)), generator.normal(size=5)
    expected_sigma, expected_u = numpys_step(matrix, u)

    sigma, next_u = networks.power_step(tf.constant(matrix), tf.constant(u))

    assert pytest.approx(expected_sigma, rel=1e-12) == float(sigma)
    np.testing.assert_allclose(next_u, expected_u, rtol=1e-12)


def test_the_gradient_is_that_of_constant_vectors():
    """Of sum(G * W / sigma): G / sigma - sum(G * W) / sigma^2 u v^T (equation 11)."""
    generator = np.random.default_rng(2)
    matrix, weights = generator.normal(size=(2, 4, 6))
    u = generator.normal(size=4)
    sigma, next_u = numpys_step(matrix, u)
    v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
    expected = weights / sigma - (weights * matrix).sum() / sigma**2 * np.outer(
        next_u, v
    )

    variable = tf.Variable(matrix)
    with tf.GradientTape() as tape:
        found, _ = networks.power_step(tf.convert_to_tensor(variable), tf.constant(u))
        loss = tf.reduce_sum(weights * variable / found)

    np.testing.assert_allclose(tape.gradient(loss, variable), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: networks.SpectralConv2D(3, 3, 3, 8, seed=1), (2, 5, 5, 3)),
        (lambda: networks.SpectralDense(6, 4, seed=1), (2, 6)),
    ],
    ids=["conv", "dense"],
)
def test_layers_divide_by_the_norm_of_the_papers_matrix(layer, shape):
    layer, inputs = layer(), np.ones(shape, np.float32)
    before = layer.u.numpy()
    layer(inputs)

    np.testing.assert_array_equal(before, layer.u.numpy())  # not training
    expected = numpys_step(matrix_of(layer.kernel.numpy()), before)[1]
    layer(inputs, training=True)
    np.testing.assert_allclose(layer.u.numpy(), expected, rtol=1e-4, atol=1e-6)
    for _ in range(100):
        layer(inputs, training=True)
    kernel = matrix_of(layer.normalized_kernel(training=False).numpy())
    assert pytest.approx(1.0, rel=1e-4) == np.linalg.norm(kernel, 2)


def on_replicas(repl, step, *arrays):
    """Runs a step whose replicas share the rows of arrays."""
    parts = [np.split(array, repl.num_replicas) for array in arrays]
    batch = [replicator.PerReplica([*map(tf.constant, part)]) for part in parts]
    return repl.run(step, tuple(batch))


def train(repl, x):
    keras.utils.set_random_seed(5)
    with repl.context():
        conv = networks.SpectralConv2D(3, 3, 2, 3, seed=1)
        dense = networks.SpectralDense(3, 1, seed=2)
        embedding = networks.SpectralEmbedding(4, 3, seed=3)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    layers = (conv, dense, embedding)
    variables = [v for layer in layers for v in layer.trainable_variables]

    def step(batch):
        with tf.GradientTape() as tape:
            features = tf.reduce_sum(tf.nn.relu(conv(*batch, training=True)), (1, 2))
            labels = tf.cast(tf.argmax(features, axis=1), tf.int32)
            outputs = dense(features, training=True)[:, 0] + tf.reduce_sum(
                features * embedding(labels, training=True), axis=1
            )
            loss = tf.reduce_mean(tf.nn.softplus(outputs))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [tf.identity(tf.convert_to_tensor(layer.u)) for layer in layers]

    for examples in x:
        found = on_replicas(repl, step, examples)
    repl.assert_in_sync()
    state = [np.asarray(v) for layer in layers for v in (layer.kernel, layer.u)]
    return state, [np.stack([np.asarray(u) for u in leaf]) for leaf in found]


def test_a_compiled_pass_assigns_the_vectors_afterwards():
    x, found = tf.ones([2, 6]), []
    layer = networks.SpectralDense(6, 4, seed=1)
    before = layer.u.numpy()
    for jit in ("off", "compute"):
        layer.u.assign(before)
        called = compiled(lambda v: layer(v, training=True), jit)
        found.append([called(x).numpy(), layer.u.numpy()])

    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, plain, rtol=RTOL_FLOAT32)
    assert not np.array_equal(before, found[1][1])


def test_replicas_with_different_examples_keep_one_u(two_replicas):
    x = np.random.default_rng(4).normal(size=(3, 4, 4, 4, 2)).astype(np.float32)
    expected, _ = train(replicator.create("single"), x)
    found, per_replica = train(two_replicas, x)

    # The engine proves that u is the same; a replica would keep its own otherwise.
    assert [] == two_replicas.local_state()
    for u in per_replica:
        np.testing.assert_array_equal(u[0], u[1])
    for want, have in zip(expected, found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


SHAPE = (4, 3, 3, 2)
LABELS = np.array([2, 0, 1, 2], np.int32)
EPSILON = 2e-5  # of the published SN-GAN code
TOLERANCE_FLOAT32 = 2e-4  # variances of 36 values, and their gradients


def examples():
    generator = np.random.default_rng(0)
    x = generator.normal(size=SHAPE) * np.array([1.0, 3.0])
    return (x + np.array([0, 1, 4, 5])[:, None, None, None]).astype(np.float32)


def make_layer(statistics):
    layer = networks.ConditionalBatchNormalization(3, 2, statistics=statistics)
    layer.gamma.assign([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    layer.beta.assign([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    return layer


def numpys(layer, x, labels, moments=None):
    mean, variance = moments or (x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2)))
    gamma, beta = layer.gamma.numpy()[labels], layer.beta.numpy()[labels]
    normalized = (x - mean) / np.sqrt(variance + EPSILON)
    return normalized * gamma[:, None, None] + beta[:, None, None]


def run(repl, statistics):
    with repl.context():
        layer = make_layer(statistics)

    def step(batch):
        with tf.GradientTape() as tape:
            outputs = layer(*batch, training=True)
            loss = tf.reduce_sum(outputs**3)
        gradient = tape.gradient(loss, [layer.gamma.value])[0]
        return outputs, replicator.all_sum(tf.convert_to_tensor(gradient))

    outputs, gradient = on_replicas(repl, step, examples(), LABELS)
    joined = np.concatenate([np.asarray(part) for part in outputs])
    return layer, [joined, np.asarray(gradient[0])]


def test_outside_training_the_moving_statistics_normalize():
    layer = make_layer("local")
    x = examples()

    outputs = layer(tf.constant(x), tf.constant(LABELS))

    expected = numpys(layer, x, LABELS, moments=(0.0, 1.0))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_across_replicas_it_is_one_batch(two_replicas):
    _, expected = run(replicator.create("single"), "cross_replica")
    _, found = run(two_replicas, "cross_replica")

    for want, have in zip(expected, found, strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(have, want, rtol=0, atol=TOLERANCE_FLOAT32 * scale)


def test_locally_each_replica_normalizes_its_own(two_replicas):
    layer, (outputs, _) = run(two_replicas, "local")

    x = examples()
    halves = [numpys(layer, x[i : i + 2], LABELS[i : i + 2]) for i in (0, 2)]
    np.testing.assert_allclose(outputs, np.concatenate(halves), rtol=1e-4, atol=1e-3)
    assert np.abs(outputs - numpys(layer, x, LABELS)).max() > 0.5


def test_losses_are_the_papers():
    real, fake = tf.constant([2.0, 0.5, -1.0]), tf.constant([-3.0, 0.25])
    with tf.GradientTape() as tape:
        tape.watch([real, fake])
        loss = networks.discriminator_loss(real, fake)

    assert pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1.25) / 2) == float(loss)
    assert pytest.approx(2.75 / 2) == float(networks.generator_loss(fake))
    gradients = [g.numpy().tolist() for g in tape.gradient(loss, [real, fake])]
    assert gradients == [pytest.approx([0, -1 / 3, -1 / 3]), [0.0, 0.5]]


def num_parameters(model):
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def test_networks_at_128_px_have_the_published_size():
    """A generator of 42.0 million with 1,000 classes (reported by He et al. 2020)."""
    paper = published("sngan")
    generator = num_parameters(networks.Generator(paper, seed=0))

    assert 42.0 == pytest.approx(generator / 1e6, abs=0.1)
    assert 72_038_788 == generator + num_parameters(
        networks.Discriminator(paper, seed=1)
    )


def test_the_projection_is_the_inner_product_with_the_class():
    smoke = WORKLOADS["sngan"].make_config("smoke", {})
    discriminator = networks.Discriminator(smoke, seed=1)
    images = tf.random.stateless_normal([4, 16, 16, 3], seed=[1, 2])
    features = {}
    original = discriminator.dense.call

    def spy(inputs, training=False):
        features["phi"] = inputs
        return original(inputs, training=training)

    discriminator.dense.call = spy
    first = discriminator(images, tf.fill([4], 2))
    second = discriminator(images, tf.fill([4], 7))
    vectors = discriminator.embedding(tf.constant([2, 7])).numpy()
    expected = features["phi"].numpy() @ (vectors[0] - vectors[1])

    np.testing.assert_allclose(first - second, expected, rtol=1e-4, atol=1e-5)


def test_the_rate_falls_linearly_to_zero():
    late = networks.LinearDecay(
        learning_rate=1e-3, num_steps=450, decay_start=400 / 450
    )
    never = networks.LinearDecay(learning_rate=1e-3, num_steps=10, decay_start=1.0)

    assert [1e-3, 1e-3, 5e-4, 0.0, 0.0] == pytest.approx(
        [float(late(step)) for step in (0, 400, 425, 450, 500)], abs=1e-9
    )
    assert pytest.approx(1e-3) == float(never(1_000_000))
    assert late.get_config() == networks.LinearDecay(**late.get_config()).get_config()
