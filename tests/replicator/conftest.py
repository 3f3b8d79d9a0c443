"""Replicators under test, all on the CPU of one process."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

import replicator
from replicator.core import devices

NUM_VIRTUAL_DEVICES = 4

# Virtual devices must exist before TensorFlow runs its first op, so at collection.
devices.split_cpu(NUM_VIRTUAL_DEVICES)


def make(name: str, num_replicas: int, **options: Any) -> Any:
    """Makes a backend; ``in_graph`` also on devices of its own, and with copies."""
    if name not in ("single", "in_graph"):
        options["devices"] = [f"CPU:{index}" for index in range(num_replicas)]
    if name == "in_graph_mirrored":
        options["variable_placement"] = "mirrored"
    backend = name if name in ("single", "tf_mirrored") else "in_graph"
    return replicator.create(backend, num_replicas=num_replicas, **options)


# Each backend once, and in_graph with one copy of variables and with four: for steps
# that take long to build. Conformance cases run on every backend as well.
ONCE = [("single", 1), ("in_graph", 2), ("in_graph_mirrored", 4), ("tf_mirrored", 2)]
# One copy of variables, and a copy on each of two devices.
IN_GRAPH = [("in_graph", 2), ("in_graph_mirrored", 2)]


@pytest.fixture
def repl(request: Any) -> Any:
    """The backend and number of replicas that a test names."""
    return make(*request.param)


@pytest.fixture(params=ONCE, ids=lambda case: f"{case[0]}-{case[1]}")
def repl_once(request: Any) -> Any:
    """Every backend at one number of replicas."""
    return make(*request.param)


@pytest.fixture
def in_graph(request: Any) -> Any:
    """Two in-graph replicas, in the placements of variables."""
    return make(*request.param)


def pytest_generate_tests(metafunc: Any) -> None:
    """Gives tests a placement in turn; the full run has both."""
    if "in_graph" in metafunc.fixturenames:
        own = zlib.crc32(metafunc.function.__name__.encode()) % len(IN_GRAPH)
        cases = [
            pytest.param(
                case, id=case[0], marks=[] if index == own else [pytest.mark.full]
            )
            for index, case in enumerate(IN_GRAPH)
        ]
        metafunc.parametrize("in_graph", cases, indirect=True)


@pytest.fixture
def separate() -> Callable[[int], Any]:
    """Makes replicas whose devices are taken to have their own memories, as GPUs do."""

    def make_separate(num_replicas: int) -> Any:
        with mock.patch.object(devices, "memory", str):
            return make("in_graph_mirrored", num_replicas)

    return make_separate


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same numbers."""
    keras.utils.set_random_seed(1)


@pytest.fixture
def per_replica() -> Callable[..., Any]:
    """Groups one value per replica into what run() takes."""
    return lambda values: replicator.PerReplica([tf.constant(v) for v in values])


@pytest.fixture
def optimizer_settings() -> Iterator[None]:
    """Leaves what ``tf.config.optimizer`` sets as it was."""
    context = eager_context.context()
    jit, options = context._optimizer_jit, context._optimizer_experimental_options
    context._optimizer_experimental_options = dict(options)
    yield
    context._optimizer_experimental_options = options
    context._optimizer_jit = jit
    context._thread_local_data.function_call_options = None


@pytest.fixture
def as_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes replicas whose devices have their own memory, and no op that hashes."""
    monkeypatch.setattr(devices, "is_cpu", lambda device: device == "host")
    monkeypatch.setattr(devices, "cpu_of", devices.first_cpu)
    return functools.partial(make, "in_graph_devices", 2)


@pytest.fixture
def mirrored() -> Callable[..., Any]:
    return functools.partial(make, "in_graph_mirrored", 2)


@pytest.fixture
def wrapped() -> Callable[..., Any]:
    """Makes weights of two numbers each, and an optimizer with a rate of 0.5."""

    def make(repl, kind=keras.optimizers.SGD, **options):
        with repl.context():
            weights = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0, 4.0])]
            optimizer = repl.wrap_optimizer(kind(0.5), **options)
        return weights, optimizer

    return make


@pytest.fixture
def fed() -> Callable[..., Any]:
    """Makes a weight of 1.0 whose gradient on each replica is what it is fed."""

    def make(repl, **options):
        with repl.context():
            weight = tf.Variable(1.0)
            optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), **options)
            optimizer.build([weight])

        def step(factor):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(weight * factor)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        def run(*factors):
            values = [tf.constant(factor) for factor in factors]
            repl.run(step, replicator.PerReplica(values))
            return float(weight.numpy())

        return run, weight, optimizer

    return make
