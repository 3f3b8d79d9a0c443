"""TPU systems: finding one, connecting to it, and assigning its cores to replicas."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf.workers import reason_of
from replicator.cluster import liveness
from replicator.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Variables that may have the name, in this order: set by Cloud TPU, GKE and Colab.
ENVIRONMENT = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
LOCAL = "local"
CONNECT_TIMEOUT_SEC = 60.0

_MESH_AXES = 4  # x, y, z, and the cores of one chip


@dataclasses.dataclass(frozen=True, slots=True)
class TpuSystem:
    """An initialised TPU."""

    name: str
    resolver: Any
    topology: Any

    @property
    def num_cores(self) -> int:
        return int(self.topology.num_tasks * self.topology.num_tpus_per_task)

    def make_strategy(
        self, num_replicas: int | None, num_logical_devices: int
    ) -> tf.distribute.Strategy:
        if num_replicas is None:
            num_replicas = max(self.num_cores // num_logical_devices, 1)
        needed = num_replicas * num_logical_devices
        if needed > self.num_cores:
            raise DeviceError(
                f"{num_replicas} replicas of {num_logical_devices} TPU cores need "
                f"{needed} cores, but TPU {self.name!r} has {self.num_cores}; use "
                "fewer replicas"
            )
        if num_logical_devices == 1 and needed == self.num_cores:
            return tf.distribute.TPUStrategy(self.resolver)
        shape = computation_shape(self.topology.mesh_shape, num_logical_devices)
        assignment = tf.tpu.experimental.DeviceAssignment.build(
            self.topology, computation_shape=shape, num_replicas=num_replicas
        )
        return tf.distribute.TPUStrategy(
            self.resolver, experimental_device_assignment=assignment
        )


def connect(tpu: str | None = None) -> TpuSystem:
    """Finds and initialises a TPU, which clears its memory."""
    name = tpu if tpu is not None else _name_from_environment(os.environ)
    if name is None:
        if not tf.config.list_physical_devices("TPU"):
            raise DeviceError(
                "no TPU was found: tpu=None, none of "
                f"{', '.join(ENVIRONMENT)} is set, and TensorFlow lists no TPU device; "
                "pass tpu='<name>' or 'grpc://<address>:8470', install TensorFlow's "
                "TPU wheel on a machine that has chips, or use another backend"
            )
        name = LOCAL
    if name.startswith("grpc://"):
        # TensorFlow itself would try for minutes.
        address = name.removeprefix("grpc://")
        liveness.wait_for({"tpu": [address]}, CONNECT_TIMEOUT_SEC)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise DeviceError(
            f"TPU {name!r} could not be initialised: {reason_of(error)}; check "
            "that it runs, that its TensorFlow has this version, and that no other "
            "process uses it"
        ) from error
    return TpuSystem(name, resolver, topology)


def computation_shape(mesh_shape: Sequence[int], num_logical_devices: int) -> list[int]:
    """Returns the shape of the block of the core mesh that one replica uses."""
    shape = [1] * _MESH_AXES
    rest = num_logical_devices
    for axis in (3, 0, 1, 2):
        shape[axis] = math.gcd(rest, int(mesh_shape[axis]))
        rest //= shape[axis]
    if rest != 1:
        mesh = " x ".join(str(int(size)) for size in mesh_shape)
        raise DeviceError(
            f"logical_devices_per_replica={num_logical_devices!r} is not a block of a "
            f"{mesh} mesh of TPU cores (x, y, z, cores per chip); use a product of "
            "divisors of these"
        )
    return shape


def _name_from_environment(environ: Mapping[str, str]) -> str | None:
    for variable in ENVIRONMENT:
        value = environ.get(variable)
        if not value:
            continue
        if variable == "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS":
            return value.partition(",")[0]
        if variable == "COLAB_TPU_ADDR" and "://" not in value:
            return f"grpc://{value}"
        return value
    return None
