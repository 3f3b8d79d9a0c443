"""Devices that this machine does not have, as TensorFlow shows them to the library.

Steps for them are traced, planned and linked like any other; they cannot run.
"""

import contextlib
import types
from unittest import mock

import numpy as np
import tensorflow as tf

import replicator


@contextlib.contextmanager
def listed(names, *, gpus_per_card=1):
    """TensorFlow lists these devices (full names) too; GPUs may share a card."""
    devices = [
        tf.config.LogicalDevice(name, tf.DeviceSpec.from_string(name).device_type)
        for name in names
    ]
    gpus = [device for device in devices if device.device_type == "GPU"]
    starts = range(0, len(gpus), gpus_per_card)
    cards = [gpus[start : start + gpus_per_card] for start in starts]
    own = tf.config.list_logical_devices
    with (
        mock.patch.object(
            tf.config, "list_logical_devices", lambda kind=None: [*own(kind), *devices]
        ),
        mock.patch.object(tf.config, "get_visible_devices", return_value=cards),
        mock.patch.object(
            tf.config, "get_logical_device_configuration", lambda card: card
        ),
    ):
        yield


def on_devices(names, *, gpus_per_card=1, backend="in_graph", num_workers=1):
    """A replicator on devices that need not be there, one for each replica here."""
    count = len(names) * num_workers
    with listed(names, gpus_per_card=gpus_per_card):
        return replicator.create(backend, num_replicas=count, devices=names)


def gpus_of_workers(repl, count, **options):
    """One of so many GPUs in each worker of a job."""
    task = f"/job:worker/replica:0/task:{repl.worker_id}/device"
    names = [f"{task}:GPU:{index}" for index in range(count)]
    options |= {"backend": "multi_worker", "num_workers": repl.num_workers}
    return on_devices(names, **options)


@contextlib.contextmanager
def tpu(make_strategy, *, mesh_shape=(2, 2, 1, 2)):
    """Every TPU that is asked for is found; ``make_strategy`` makes its strategy.

    Its keyword arguments are those of ``tf.distribute.TPUStrategy``; an assignment is
    what ``DeviceAssignment.build`` was asked for.
    """
    shape = np.array(mesh_shape)
    topology = types.SimpleNamespace(
        num_tasks=1, num_tpus_per_task=shape.prod(), mesh_shape=shape
    )
    assignment = types.SimpleNamespace(build=lambda _, **asked: asked)
    resolver = tf.distribute.cluster_resolver
    experimental = tf.tpu.experimental
    with (
        mock.patch.object(resolver, "TPUClusterResolver"),
        mock.patch.object(tf.config, "experimental_connect_to_cluster"),
        mock.patch.object(experimental, "initialize_tpu_system", return_value=topology),
        mock.patch.object(experimental, "DeviceAssignment", assignment),
        mock.patch.object(
            tf.distribute, "TPUStrategy", lambda _, **options: make_strategy(**options)
        ),
    ):
        yield
