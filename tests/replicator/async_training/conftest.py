"""Jobs of workers and servers that are devices and threads of this process."""

import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import remote_value

import replicator
from replicator.cluster import membership

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(4)]
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
