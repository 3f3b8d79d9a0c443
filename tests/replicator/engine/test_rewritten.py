"""Steps give what they give on one device, whatever is rewritten in them."""

import covering
import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import replicator
from replicator.engine import convolutions

BEFORE = ("none", "repeat", "tile", "resize", "average", "broadcast")
CONVOLUTIONS = ("none", "conv", "transpose")
BIASES = ("none", "NHWC", "NCHW", "add", "row")
AFTER = ("none", "average", "largest", "relu", "sum pixels", "sum all")
PROGRAMS = st.fixed_dictionaries(
    {
        "size": st.sampled_from(
            [(16, 16, 16), (8, 32, 18), (3, 4, 6), (2, 5, 7), (1, 2, 2)]
        ),
        "channels": st.sampled_from([1, 2]),
        "last": st.sampled_from([1, 3, 40]),
        "kernel": st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 2), (5, 3)]),
        "stride": st.sampled_from([1, 1, 2]),
        "padding": st.sampled_from(["SAME", "SAME", "VALID"]),
        "pool": st.sampled_from([(2, 2, "VALID"), (2, 2, "SAME"), (3, 2, "SAME")]),
        "before": st.sampled_from(BEFORE),
        "convolution": st.sampled_from(CONVOLUTIONS),
        "bias": st.sampled_from(BIASES),
        "after": st.sampled_from(AFTER),
        "dtype": st.sampled_from(["float32", "float32", "float64", "bfloat16"]),
        "is_twice": st.booleans(),
    }
)

PLAIN = {
    "size": (16, 16, 16),
    "channels": 1,
    "last": 3,
    "kernel": (3, 3),
    "stride": 1,
    "padding": "SAME",
    "pool": (2, 2, "VALID"),
    "before": "none",
    "convolution": "conv",
    "bias": "none",
    "after": "average",
    "dtype": "float32",
    "is_twice": False,
}


def _pooled(image, size, stride, padding):
    return tf.nn.avg_pool2d(image, size, stride, padding)


def _repeated(image, how):
    if how == "repeat":
        return tf.repeat(tf.repeat(image, 2, axis=1), 2, axis=2)
    height, width = image.shape[1:3]
    if how == "resize":
        return tf.image.resize(image, [2 * height, 2 * width], "nearest")
    tiles = tf.tile(image[:, :, None, :, None], [1, 1, 2, 1, 2, 1])
    return tf.reshape(tiles, [-1, 2 * height, 2 * width, image.shape[3]])


def _before(drawn, image):
    if drawn["before"] == "average":
        return _pooled(image, *drawn["pool"])
    if drawn["before"] == "broadcast":
        sums = tf.reduce_sum(image, axis=[0, 1, 2])
        column = tf.reduce_sum(sums[:, None], axis=1)
        return tf.broadcast_to(column, tf.shape(image))
    return image if drawn["before"] == "none" else _repeated(image, drawn["before"])


def _convolved(drawn, image, kernel):
    stride, padding = drawn["stride"], drawn["padding"]
    if drawn["convolution"] == "conv":
        return tf.nn.conv2d(image, kernel, stride, padding)
    if drawn["convolution"] == "none":
        return image
    batch, height, width, _ = image.shape
    shape = [batch, height * stride, width * stride, drawn["last"]]
    turned = tf.transpose(kernel, [0, 1, 3, 2])
    return tf.nn.conv2d_transpose(image, turned, shape, stride, "SAME")


def _biased(drawn, image, bias):
    if drawn["bias"] in ("NHWC", "NCHW"):
        size = image.shape[3 if drawn["bias"] == "NHWC" else 1]
        biases = tf.repeat(bias, size)
        return tf.nn.bias_add(image, biases, data_format=drawn["bias"])
    if drawn["bias"] == "row":
        return image + tf.repeat(bias, image.shape[1])[:, None, None]
    return image if drawn["bias"] == "none" else bias + image


def _after(drawn, image):
    if drawn["after"] in ("none", "relu"):
        return tf.nn.relu(image) if drawn["after"] == "relu" else image
    if drawn["after"] == "largest":
        return tf.nn.max_pool2d(image, 2, 2, "SAME")
    image = _pooled(image, *drawn["pool"])
    axes = {"sum pixels": [1, 2], "sum all": None}
    if drawn["after"] == "average":
        return image
    return tf.reduce_sum(image, axis=axes[drawn["after"]])


def _step(drawn):
    def function(image, kernel, bias):
        image = _convolved(drawn, _before(drawn, image), kernel)
        return _after(drawn, _biased(drawn, image, bias))

    def step(image, kernel, bias):
        given = [image, kernel, bias]
        with tf.GradientTape() as outer:
            outer.watch(given)
            with tf.GradientTape() as tape:
                tape.watch(given)
                result = function(*given)
                loss = tf.reduce_sum(result * result)
            gradients = tape.gradient(loss, given, unconnected_gradients="zero")
        found = [result, *gradients]
        if drawn["is_twice"]:
            found += outer.gradient(gradients, given, unconnected_gradients="zero")
        return found

    return step


def _inputs(drawn, num_replicas):
    draw = np.random.default_rng(7)
    last, channels = drawn["last"], drawn["channels"]
    shapes = [[*drawn["size"], channels], [*drawn["kernel"], channels, last], [1]]
    return [
        [
            tf.cast(draw.integers(-2, 3, shape), drawn["dtype"])
            for _ in range(num_replicas)
        ]
        for shape in shapes
    ]


def _expected(step, inputs, dtype):
    try:
        run = tf.function(step, autograph=False)
        every = [
            run(*(tf.cast(value, dtype) for value in given))
            for given in zip(*inputs, strict=True)
        ]
    except (LookupError, ValueError, tf.errors.OpError):
        return None
    return [[tf.cast(value, tf.float64).numpy() for value in one] for one in every]


@hypothesis.settings(
    max_examples=covering.num_examples(4, 8),
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.example({**PLAIN, "convolution": "none", "after": "sum all"})
@hypothesis.example({**PLAIN, "convolution": "transpose"})
@hypothesis.example({**PLAIN, "bias": "NCHW"})
@hypothesis.example({**PLAIN, "before": "broadcast"})
@hypothesis.example({**PLAIN, "before": "repeat", "is_twice": True})
@hypothesis.given(PROGRAMS)
def test_values_and_gradients_are_those_of_one_device(drawn):
    step = _step(drawn)
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = _inputs(drawn, repl.num_replicas)
    expected = _expected(step, inputs, drawn["dtype"])
    exact = _expected(step, inputs, "float64")
    if expected is None or exact is None:
        return

    def whole(given):
        return step(*given)

    found = repl.run(whole, [replicator.PerReplica(values) for values in inputs])
    for index, per_replica in enumerate(found):
        for replica, value in enumerate(per_replica):
            other = tf.cast(value, tf.float64).numpy()
            one, true = expected[replica][index], exact[replica][index]
            assert other.shape == one.shape
            if drawn["dtype"] == "bfloat16" and index:
                continue  # sums of thousands in 16 bits are no numbers
            rounding = 0.05 if drawn["dtype"] == "bfloat16" else 1e-4
            limit = 4 * np.abs(one - true).max() + rounding * np.abs(true).max() + 1e-6
            assert np.abs(other - true).max() <= limit, (index, replica)
    assert "failed in this step" not in repl.explain()


@pytest.mark.parametrize(
    ("module", "name"), [(convolutions, "fuse"), (convolutions, "multiply")]
)
def test_a_rewriter_that_fails_is_left_out(monkeypatch, module, name):
    def fail(*given, **options):
        original(*given, **options)
        raise IndexError("list index out of range")

    original = getattr(module, name)
    monkeypatch.setattr(module, name, fail)
    drawn = {**PLAIN, "kernel": (3, 3), "last": 3}
    step = _step(drawn)
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = _inputs(drawn, 2)

    def whole(given):
        return step(*given)

    found = repl.run(whole, [replicator.PerReplica(values) for values in inputs])

    for index, value in enumerate(step(*(v[0] for v in inputs))):
        np.testing.assert_allclose(found[index][0], value, 1e-4, 1e-2)
    (line,) = [x for x in repl.explain().splitlines() if "failed in this step" in x]
    assert "IndexError: list index out of range" in line
