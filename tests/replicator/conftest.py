"""Replicators under test, all on the CPU of one process.

Workers and servers that are devices and threads of this process.
"""

from __future__ import annotations

import functools
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import keras
import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import remote_value
from tensorflow.python.eager import context as eager_context

import replicator
from replicator.cluster import membership
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


# Asynchronous training.
CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
LOST = (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError)


class Handle(tf.distribute.coordinator.RemoteValue):
    """What a worker was given, as TensorFlow's coordinator keeps it."""

    def __init__(self, function, arguments):
        self.function, self.arguments = function, arguments
        self.result = self._error = self._status = None
        self._status_available_event = threading.Event()

    def run(self):
        self._error = None
        self.result = self.function(*[other.result for other in self.arguments])

    def end(self, error=None):
        self._error = error
        self._status_available_event.set()

    def abort(self):
        self._status = remote_value.RemoteValueStatus.ABORTED
        self.end()


class Worker:
    """A thread for a worker, which is back at once after an error of a lost one."""

    def __init__(self, device):
        self.device = device
        self.comes_back = True
        self.given = []
        self._resource_tracking_lock = threading.Lock()
        self._resource_remote_value_refs = []
        self._thread = ThreadPoolExecutor(1)

    def create_resource(self, function, args=()):
        handle = Handle(function, [argument._values[-1] for argument in args])
        self.given.append(handle)
        self._thread.submit(self._work, handle)
        return handle

    def restart(self):
        """Makes again what it was given before; what is done says so itself."""
        for handle in self.given:
            if handle._error is None:
                handle.run()

    def _work(self, handle):
        try:
            with tf.device(self.device):
                try:
                    handle.run()
                except LOST:
                    if not self.comes_back:
                        handle.abort()
                        return
                    self.restart()
        except Exception as error:  # noqa: BLE001 (the client raises it)
            handle.end(error)
        else:
            handle.end()


def losable(run):
    """Turns an error of Python in a step into the one of a lost worker."""

    def run_or_lose(*args):
        try:
            return run(*args)
        except tf.errors.UnknownError as error:
            raise tf.errors.UnavailableError(None, None, "worker lost") from error

    return run_or_lose


@pytest.fixture
def make_async(monkeypatch):
    """Makes replicators whose workers and servers are devices of this process."""
    monkeypatch.setattr(membership, "CLIENT_DEVICE", CPU[0])
    monkeypatch.setattr(
        membership, "devices_of_worker", lambda worker, share: [CPU[worker]] * share
    )
    monkeypatch.setattr(
        membership, "server_devices", lambda count: tuple(CPU[2 : 2 + count])
    )

    def make(num_workers=2, num_servers=2, **options):
        workers = [Worker(CPU[index]) for index in range(num_workers)]
        addresses = {
            "worker": [f"localhost:{2997 + index}" for index in range(num_workers)],
            "ps": [f"localhost:{3997 + index}" for index in range(num_servers)],
        }
        watch = membership.ServerWatch(())
        watch._addresses = tuple(addresses["ps"])
        made = membership.Connection(
            cluster=types.SimpleNamespace(addresses=addresses),
            strategy=None,
            coordinator=types.SimpleNamespace(
                _cluster=types.SimpleNamespace(workers=workers)
            ),
            watch=watch,
        )
        monkeypatch.setattr(membership, "connect_to_servers", lambda *_: made)
        repl = replicator.create("async", **options)
        repl._dispatcher._run = losable(repl._dispatcher._run)
        repl.workers = workers
        return repl

    return make
