"""Convolutions become products, or are of the smaller image, with their values."""

import functools
import itertools

import covering
import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import linked, of_replica, on_devices
from hypothesis import strategies as st

import replicator

LOCAL = "/job:localhost/replica:0/task:0/device:"
CPUS, GPUS = [f"{LOCAL}CPU:0"] * 2, [f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"]
NUM_REPLICAS = 2
CONVOLUTIONS = {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"}


def step_of(function):
    def step(image, kernel):
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            result = function(image, kernel)
        weights = tf.reshape(tf.range(tf.size(result)) % 7, tf.shape(result))
        above = tf.cast(weights, result.dtype)
        gradients = tape.gradient(result, [image, kernel], output_gradients=above)
        return result, *gradients

    return step


def optimized(function, image, kernel, *, devices=CPUS, dtype=tf.float32):
    specs = [tf.TensorSpec(image, dtype), tf.TensorSpec(kernel, dtype)]
    return of_replica(linked(on_devices(devices), step_of(function), *specs))


def check(function, image, kernel, dtype=tf.float32):
    """To the last bit, of whole numbers; images of replicas differ."""
    random = np.random.default_rng(7)
    images = [random.integers(-4, 5, image) for _ in range(NUM_REPLICAS)]
    images, weights = tf.cast(images, dtype), random.integers(-4, 5, kernel)
    weights, step = tf.cast(weights, dtype), step_of(function)
    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)

    results = repl.run(
        lambda image: step(image, weights), replicator.PerReplica(list(images))
    )
    for index in range(NUM_REPLICAS):
        for found, expected in zip(results, step(images[index], weights), strict=True):
            np.testing.assert_array_equal(
                tf.cast(found[index], tf.float64), tf.cast(expected, tf.float64)
            )


def convolution(strides=(1, 1), padding="SAME", dilations=1):
    return functools.partial(
        tf.nn.conv2d, strides=strides, padding=padding, dilations=dilations
    )


PLAIN = convolution()
POINTS, PATCHES = ((3, 5, 7, 4), (1, 1, 4, 6)), ((1, 2, 2, 3), (3, 3, 3, 16))
PRODUCTS = {
    "points": (PLAIN, *POINTS),
    "points, valid": (convolution(padding="VALID"), *POINTS),
    "points, 2x2": (convolution((2, 2)), (2, 8, 6, 4), (1, 1, 4, 6)),
    "points, 2x3": (convolution((2, 3)), (2, 7, 5, 4), (1, 1, 4, 6)),
    "points, 3x2": (convolution((3, 2), "VALID"), (2, 7, 5, 4), (1, 1, 4, 6)),
    "points of 16 bits": (PLAIN, (2, 4, 4, 8), (1, 1, 8, 4), tf.bfloat16),
    "patches": (PLAIN, *PATCHES),
    "patches, 2x2": (convolution((2, 2)), (1, 4, 4, 3), (3, 3, 3, 16)),
    "patches, 2x3": (convolution((2, 3)), (1, 4, 5, 3), (3, 2, 3, 32)),
    "patches, valid": (convolution(padding="VALID"), (1, 4, 4, 3), (3, 3, 3, 16)),
    "patches, uneven": (convolution((2, 2), "VALID"), (1, 7, 6, 2), (3, 4, 2, 32)),
    "patches, larger": (PLAIN, (1, 2, 2, 3), (5, 4, 3, 16)),
}
NO_PRODUCTS = {
    "a quarter of the kernel": (PLAIN, (1, 2, 2, 3), (3, 3, 3, 15), {}),
    "large patches": (PLAIN, (4, 8, 8, 3), (3, 3, 3, 16), {}),
    "holes": (convolution(dilations=2), (1, 4, 4, 3), (2, 2, 3, 64), {}),
    "two groups": (PLAIN, (2, 4, 4, 8), (1, 1, 4, 6), {}),
    # Types that were not measured.
    "64 bits": (PLAIN, (2, 4, 4, 8), (1, 1, 8, 4), {"dtype": tf.float64}),
    "patches of 16 bits": (PLAIN, *PATCHES, {"dtype": tf.bfloat16}),
    # Their kernels are not rearranged.
    "GPUs": (PLAIN, *POINTS, {"devices": GPUS}),
}


@pytest.mark.parametrize("what", PRODUCTS)
def test_products_are_the_convolution_and_its_gradients(what):
    function, image, kernel, *dtype = PRODUCTS[what]
    given = {"dtype": dtype[0]} if dtype else {}
    found = [node.op for node in optimized(function, image, kernel, **given)]

    assert not CONVOLUTIONS & set(found)
    assert 3 == found.count("MatMul")
    check(function, image, kernel, *dtype)


@pytest.mark.parametrize("what", NO_PRODUCTS)
def test_other_convolutions_stay(what):
    function, image, kernel, options = NO_PRODUCTS[what]
    found = {node.op for node in optimized(function, image, kernel, **options)}

    assert CONVOLUTIONS <= found
    assert "MatMul" not in found


@pytest.mark.parametrize("batch", [1, None])
def test_patches_of_an_unknown_batch_may_be_many(batch):
    """A product is made where they are known to be few, or under one pixel."""

    def operations(image, kernel):
        return {node.op for node in optimized(PLAIN, [batch, *image[1:]], kernel)}

    assert (batch is None) == ("Conv2D" in operations(*PATCHES))
    assert "Conv2D" not in operations(*POINTS)


def test_patches_and_kernels_are_made_once():
    found = [node.op for node in optimized(*PRODUCTS["patches, 2x2"])]

    assert found.count("GatherV2") == len(["patches", "sum of uses"])
    assert found.count("Pad") == len(["image", "gradients of patches"])
    assert "ShapeN" not in found


BATCH, CHANNELS, LAST = 16, 2, 5
HEIGHT, WIDTH = 16, 18  # the least, times BATCH, is 4096
KERNELS = [(3, 3), (1, 3), (5, 3)]


def tiled(image):
    batch, height, width, channels = image.shape
    tiles = tf.tile(image[:, :, None, :, None], [1, 1, 2, 1, 2, 1])
    shape = [-1 if batch is None else batch, 2 * height, 2 * width, channels]
    return tf.reshape(tiles, shape)


def columns_first(image):
    return tf.repeat(tf.repeat(image, 2, axis=2), 2, axis=1)


def resized(image):
    height, width = image.shape[1:3]
    return tf.image.resize(image, [2 * height, 2 * width], "nearest")


def bias_added(image):
    return tf.nn.bias_add(image, tf.range(LAST, dtype=image.dtype))


def added_to(image):
    return tf.range(LAST, dtype=image.dtype)[None, None] + image


REPEATS = {
    "tile": tiled,
    "repeat": columns_first,
    "resize": resized,
    "keras": keras.layers.UpSampling2D(),
}
BIASES = {"none": tf.identity, "bias_add": bias_added, "add": added_to}
AVERAGES = {
    "tf": lambda image: tf.nn.avg_pool2d(image, 2, 2, "VALID"),
    "keras": keras.layers.AveragePooling2D(2, padding="same"),
}


def convolved(image, kernel):
    return tf.nn.conv2d(image, kernel, 1, "SAME")


def repeats(way):
    return lambda image, kernel: convolved(REPEATS[way](image), kernel)


def averages(way, bias="none"):
    add = BIASES[bias] if bias != "none" else lambda image: image
    return lambda image, kernel: AVERAGES[way](add(convolved(image, kernel)))


FUSED = {
    **{f"repeat {way}": repeats(way) for way in REPEATS},
    **{
        f"average {way} {bias}": averages(way, bias)
        for way, bias in itertools.product(AVERAGES, BIASES)
    },
}


def resampled(function, kernel=(3, 3), size=(HEIGHT, WIDTH), batch=BATCH, **options):
    shapes = [batch, *size, CHANNELS], [*kernel, CHANNELS, LAST]
    nodes = optimized(function, *shapes, **options)
    found = [
        node
        for node in nodes
        if "Conv2D" in node.op and list(node.attr["strides"].list.i) == [1, 2, 2, 1]
    ]
    return found, nodes


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("way", FUSED)
def test_they_are_computed_from_the_smaller_image(way, kernel):
    found, nodes = resampled(FUSED[way], kernel)

    assert len(found) == len(["result", "image", "kernel"])
    assert sum("Conv2D" in node.op for node in nodes) == len(found)
    assert not {"Tile", "AvgPool", "AvgPoolGrad"} & {node.op for node in nodes}


@pytest.mark.usefixtures("optimizer_settings")
def test_all_stay_on_gpus_and_where_the_user_turned_the_optimizer_off():
    assert not resampled(repeats("tile"), devices=GPUS)[0]
    assert not resampled(averages("tf", "bias_add"), devices=GPUS)[0]
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

    assert CONVOLUTIONS <= {node.op for node in optimized(PLAIN, *POINTS)}
    assert not resampled(repeats("tile"))[0]


USED_ELSEWHERE = {
    "sum": lambda image: AVERAGES["tf"](image) + tf.reduce_sum(image),
    "bias": lambda image: AVERAGES["tf"](
        image + tf.reshape(tf.range(16.0 * 18.0), [1, HEIGHT, WIDTH, 1])
    ),
}


@pytest.mark.parametrize("way", USED_ELSEWHERE)
def test_a_convolution_whose_pixels_matter_stays(way):
    """Something else needs it, or it gets another bias at each pixel."""
    _, nodes = resampled(lambda *given: USED_ELSEWHERE[way](convolved(*given)))

    assert [node.op for node in nodes].count("AvgPool") == 1


@pytest.mark.parametrize(
    ("before", "after"), [(tiled, tf.identity), (tf.identity, AVERAGES["tf"])]
)
def test_a_convolution_that_waits_for_something_stays(before, after):
    def waits(image, kernel):
        image = before(image)
        with tf.control_dependencies([tf.debugging.assert_all_finite(image, "")]):
            result = convolved(image, kernel)
        return after(result)

    nodes = [node for node in resampled(waits)[1] if node.op == "Conv2D"]
    assert [1, 1, 1, 1] in [list(node.attr["strides"].list.i) for node in nodes]


# Steps give what they give on one device, whatever is rewritten in them.

BEFORE = ("none", "repeat", "tile", "resize", "average", "broadcast")
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
        "convolution": st.sampled_from(["none", "conv", "transpose"]),
        "bias": st.sampled_from(["none", "NHWC", "NCHW", "add", "row"]),
        "after": st.sampled_from(AFTER),
        "dtype": st.sampled_from(["float32", "float32", "float64", "bfloat16"]),
        "is_twice": st.booleans(),
    }
)

SIMPLE = {
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


def _before(drawn, image):
    if drawn["before"] == "average":
        return _pooled(image, *drawn["pool"])
    if drawn["before"] == "broadcast":
        sums = tf.reduce_sum(image, axis=[0, 1, 2])
        column = tf.reduce_sum(sums[:, None], axis=1)
        return tf.broadcast_to(column, tf.shape(image))
    if drawn["before"] == "repeat":
        return tf.repeat(tf.repeat(image, 2, axis=1), 2, axis=2)
    return image if drawn["before"] == "none" else REPEATS[drawn["before"]](image)


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
@hypothesis.example({**SIMPLE, "convolution": "none", "after": "sum all"})
@hypothesis.example({**SIMPLE, "convolution": "transpose"})
@hypothesis.example({**SIMPLE, "bias": "NCHW"})
@hypothesis.example({**SIMPLE, "before": "broadcast"})
@hypothesis.example({**SIMPLE, "before": "repeat", "is_twice": True})
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


@pytest.mark.parametrize(("name", "kernel"), [("kron", (3, 3)), ("bincount", (1, 1))])
def test_a_rewriter_that_fails_is_left_out(monkeypatch, name, kernel):
    """In its middle, by a function of NumPy: of the smaller image, or of products."""
    program = {**SIMPLE, "kernel": kernel}
    step, inputs = _step(program), _inputs(program, 2)
    repl = replicator.create("in_graph", num_replicas=2)

    def fail(*_, **options):
        raise IndexError("list index out of range")

    def whole(given):
        return step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(np, name, fail)
        found = repl.run(whole, [replicator.PerReplica(values) for values in inputs])

    for index, value in enumerate(step(*(v[0] for v in inputs))):
        np.testing.assert_allclose(found[index][0], value, 1e-4, 1e-2)
    (line,) = [x for x in repl.explain().splitlines() if "failed in this step" in x]
    assert "IndexError: list index out of range" in line
