"""Kinds of arguments: types, nests, composite tensors, and what is none of these."""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import replicator


class Pair(NamedTuple):
    left: tf.Tensor
    right: tf.Tensor


def _indexed_slices():
    return tf.IndexedSlices(
        tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), tf.constant([3, 1])
    )


KINDS = {
    "None": lambda: None,
    "a Python float": lambda: 2.5,
    "a Python int": lambda: 3,
    "a negative int": lambda: -1,
    "a Python bool": lambda: True,
    "a NaN": lambda: float("nan"),
    "a huge int": lambda: 10**30,
    "a Python string": lambda: "text",
    "bytes": lambda: b"bytes",
    "an empty list": list,
    "an empty dict": dict,
    "a list with None": lambda: [None, 1.0],
    "a dict of lists": lambda: {"a": [tf.constant(1.0)], "b": (tf.constant([2]),)},
    "a namedtuple": lambda: Pair(tf.constant(1.0), tf.constant(2.0)),
    "a set": lambda: {1.0, 2.0},
    "a generator": lambda: (x for x in (1.0, 2.0)),
    "a function": lambda: lambda *_: tf.constant(1.0),
    "an object": object,
    "an exception": lambda: ValueError("an argument"),
    "float32": lambda: tf.constant([1.0, 2.0]),
    "float64": lambda: tf.constant([1.0], tf.float64),
    "float16": lambda: tf.constant([1.0], tf.float16),
    "bfloat16": lambda: tf.constant([1.0], tf.bfloat16),
    "complex64": lambda: tf.constant([1.0 + 2.0j], tf.complex64),
    "int64": lambda: tf.constant([1, 2], tf.int64),
    "uint8": lambda: tf.constant([1, 2], tf.uint8),
    "bool": lambda: tf.constant([True, False]),
    "string": lambda: tf.constant(["a", "b"]),
    "an empty tensor": lambda: tf.zeros([0, 2]),
    "ragged": lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
    "ragged strings": lambda: tf.ragged.constant([["a"], ["b", "c"]]),
    "sparse": lambda: tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]]),
    "IndexedSlices": _indexed_slices,
    "a tf.Variable": lambda: tf.Variable([1.0, 2.0]),
    "a Keras variable": lambda: keras.Variable([1.0, 2.0]),
    "NumPy floats": lambda: np.ones([2], np.float32),
    "NumPy objects": lambda: np.array([object(), None]),
    "NumPy strings": lambda: np.array(["a", "b"]),
    "a large array": lambda: np.arange(3000.0).reshape(50, 60),
    "a long text": lambda: "a line\n" * 500,
    "an integer of 6000 digits": lambda: 10**6000,
    "a TensorSpec": lambda: tf.TensorSpec([2]),
    "a dataset": lambda: tf.data.Dataset.range(3),
    "a dataset's iterator": lambda: iter(tf.data.Dataset.range(3)),
    "a PerReplica": lambda: replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)]),
    "a nested PerReplica": lambda: replicator.PerReplica(
        [replicator.PerReplica([1.0]), replicator.PerReplica([2.0])]
    ),
    "a Keras layer": lambda: keras.layers.Dense(1),
    "a Keras optimizer": lambda: keras.optimizers.SGD(0.1),
}
