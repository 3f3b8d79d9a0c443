"""Convolutions become products of matrices, with the values of convolutions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.core.topology import make_topology
from replicator.engine.graph import optimize
from replicator.engine.graph.trace import trace

LOCAL = "/job:localhost/replica:0/task:0/device:"
CPUS = make_topology([[f"{LOCAL}CPU:0"]] * 2)
GPUS = make_topology([[f"{LOCAL}GPU:{index}"] for index in range(2)])
NUM_REPLICAS = 2
CONVOLUTIONS = {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution, and how many of it and its two gradients become products."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    padding: str = "SAME"
    dilations: int = 1
    dtype: tf.DType = tf.float32
    products: int = 3

    def __str__(self):
        image, kernel = ("x".join(map(str, s)) for s in (self.image, self.kernel))
        strides = "x".join(map(str, self.strides))
        return f"{image} by {kernel} {strides} {self.padding} {self.dtype.name}"

    def convolve(self, image, kernel):
        return tf.nn.conv2d(
            image, kernel, self.strides, self.padding, dilations=self.dilations
        )


PRODUCTS = [
    Case((3, 5, 7, 4), (1, 1, 4, 6)),
    Case((3, 5, 7, 4), (1, 1, 4, 6), padding="VALID"),
    Case((2, 8, 6, 4), (1, 1, 4, 6), (2, 2)),
    Case((2, 7, 5, 4), (1, 1, 4, 6), (2, 3)),
    Case((2, 7, 5, 4), (1, 1, 4, 6), (3, 2), "VALID"),
    Case((1, 2, 2, 3), (3, 3, 3, 16)),
    Case((1, 4, 4, 3), (3, 3, 3, 16), (2, 2)),
    Case((1, 4, 5, 3), (3, 2, 3, 32), (2, 3)),
    Case((1, 4, 4, 3), (3, 3, 3, 16), (1, 1), "VALID"),
    Case((1, 7, 6, 2), (3, 4, 2, 32), (2, 2), "VALID"),
    Case((1, 2, 2, 3), (5, 4, 3, 16)),
    Case((2, 4, 4, 8), (1, 1, 8, 4), dtype=tf.bfloat16),
]
OTHERS = [
    Case((1, 2, 2, 3), (3, 3, 3, 15), products=0),  # as many patches as a quarter
    Case((4, 8, 8, 3), (3, 3, 3, 16), products=0),
    Case((1, 4, 4, 3), (2, 2, 3, 64), dilations=2, products=0),
    Case((2, 4, 4, 8), (1, 1, 4, 6), products=0),  # two groups
    Case((2, 4, 4, 8), (1, 1, 8, 4), dtype=tf.float64, products=0),
    Case((1, 2, 2, 3), (3, 3, 3, 16), dtype=tf.bfloat16, products=0),
]


def step_of(case):
    def step(image, kernel):
        with tf.GradientTape() as tape:
            tape.watch([image, kernel])
            result = case.convolve(image, kernel)
            weights = tf.reshape(tf.range(tf.size(result)) % 7, tf.shape(result))
            loss = tf.reduce_sum(result * tf.cast(weights, result.dtype))
        return result, *tape.gradient(loss, [image, kernel])

    return step


def operations(case, topology, batch=None):
    specs = [
        tf.TensorSpec([batch, *case.image[1:]], case.dtype),
        tf.TensorSpec(case.kernel, case.dtype),
    ]
    traced = trace(step_of(case), specs, NUM_REPLICAS)
    return [node.op for node in optimize.optimize(traced, topology).node]


def of(case, seed):
    """Whole numbers, which sums of products keep exactly in any order."""
    random = np.random.default_rng(seed)
    return [
        tf.constant(random.integers(-4, 5, shape), case.dtype)
        for shape in (case.image, case.kernel)
    ]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_are_the_convolution_and_its_gradients(case):
    """To the last bit of whole numbers; images of replicas differ."""
    found = operations(case, CPUS, case.image[0])
    assert not CONVOLUTIONS & set(found)
    assert case.products == found.count("MatMul")

    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)
    images, kernel = [of(case, seed)[0] for seed in range(NUM_REPLICAS)], of(case, 9)[1]
    step = step_of(case)

    results = repl.run(lambda image: step(image, kernel), replicator.PerReplica(images))
    for index, image in enumerate(images):
        for result, expected in zip(results, step(image, kernel), strict=True):
            own = result.values[index]
            np.testing.assert_array_equal(
                tf.cast(own, tf.float64), tf.cast(expected, tf.float64)
            )


@pytest.mark.parametrize(
    ("case", "topology"), [*((case, CPUS) for case in OTHERS), (PRODUCTS[0], GPUS)]
)
def test_other_convolutions_stay(case, topology):
    """Large patches, holes in the kernel, groups, types that were not measured.

    And those on GPUs, whose kernels are not rearranged.
    """
    found = operations(case, topology, case.image[0])
    assert CONVOLUTIONS <= set(found)
    assert "MatMul" not in found


@pytest.mark.parametrize("batch", [1, None])
def test_patches_of_an_unknown_batch_may_be_many(batch):
    """A product is made where they are known to be few, or under one pixel."""
    few, pixel = PRODUCTS[5], PRODUCTS[2]

    assert (batch is None) == ("Conv2D" in operations(few, CPUS, batch))
    assert "Conv2D" not in operations(pixel, CPUS, batch)


@pytest.mark.usefixtures("optimizer_settings")
def test_convolutions_stay_where_the_user_turned_the_optimizer_off():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

    assert CONVOLUTIONS <= set(operations(PRODUCTS[0], CPUS))


def test_patches_and_kernels_are_made_once():
    """The convolution and its gradients share them, and no shape is left over."""
    case = PRODUCTS[6]
    found = operations(case, CPUS, case.image[0])

    assert found.count("GatherV2") == len(["patches", "sum of uses"])
    assert found.count("Pad") == len(["image", "gradients of patches"])
    assert "ShapeN" not in found
