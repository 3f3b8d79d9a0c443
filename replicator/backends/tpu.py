"""Replicas on the cores of TPUs, by ``tf.distribute.TPUStrategy``.

The paper's ``TpuReplicator`` (Buchlovsky et al. 2019, section 3). All of it is the code
of ``StrategyReplicator``, which is tested on ``MirroredStrategy``; what is here is what
TPUs ask for: the system is initialised, cores are assigned, steps are compiled, so that
shapes must be static, and their reductions know fewer types.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from replicator._tf.workers import reason_of
from replicator.backends.strategy import StrategyReplicaContext, StrategyReplicator
from replicator.cluster import liveness
from replicator.core import context, devices
from replicator.errors import DeviceError, StaticShapeError

if TYPE_CHECKING:
    from replicator.backends.base import InputRequest
    from replicator.inputs.iterator import InputIterator

# Variables that may have the name, in this order: set by Cloud TPU, GKE and Colab.
ENVIRONMENT = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")
LOCAL = "local"
CONNECT_TIMEOUT_SEC = 60.0

_MESH_AXES = 4  # x, y, z, and the cores of one chip


class TpuSystem(NamedTuple):
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
    name = next(filter(environ.get, ENVIRONMENT), "")
    value = environ.get(name)
    if value and name == "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS":
        return value.partition(",")[0]
    if value and name == "COLAB_TPU_ADDR" and "://" not in value:
        return f"grpc://{value}"
    return value


class TpuReplicaContext(StrategyReplicaContext):
    """The stock collectives for the types that TPUs reduce."""

    wire_integer = tf.int32  # The widest integer that the hardware sums.
    has_static_shapes = True

    def _reduce_alike(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        reduce = super()._reduce_alike
        dtype = tensors[0].dtype
        if dtype.is_integer and dtype.size > tf.int32.size:
            return sum_in_parts(tensors, lambda parts: reduce(parts, op))
        return reduce(tensors, op)

    def logical_device(self, index: int) -> Any:
        device_index = context.check_logical_index(index, self.num_logical_devices)
        strategy = tf.distribute.get_strategy()
        return strategy.extended.experimental_logical_device(device_index)


class TpuReplicator(StrategyReplicator):
    """Replicas on TPU cores.

    Steps are compiled by XLA: every dimension must be known when a step is traced, so
    batch with ``drop_remainder=True``. ``run(num_steps=k)`` keeps k steps on the TPU in
    one dispatch, which TPUs need to be fast.

    Attributes:
      system: The initialised TPU.
      logical_devices_per_replica: Cores that one replica is split over.
    """

    replica_context_class = TpuReplicaContext

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        tpu: str | None = None,
        logical_devices_per_replica: int = 1,
    ) -> None:
        count = devices.check_num_logical(logical_devices_per_replica)
        self.system = connect(tpu)
        super().__init__(self.system.make_strategy(num_replicas, count))
        self.logical_devices_per_replica = count

    def logical_device(self, index: int) -> Any:
        device_index = context.check_logical_index(
            index, self.logical_devices_per_replica
        )
        return self.strategy.extended.experimental_logical_device(device_index)

    def _make_input_iterator(self, asked: InputRequest) -> InputIterator:
        inputs = super()._make_input_iterator(asked)
        check_static(inputs.element_spec)
        return inputs


def check_static(element_spec: Any) -> None:
    """Rejects batches without static shapes, which a compiled step needs."""
    specs = tf.nest.flatten(element_spec, expand_composites=False)
    for index, spec in enumerate(specs):
        if isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined():
            continue
        raise StaticShapeError(
            f"component {index} of a batch is {spec}, but TPU steps are "
            "compiled, so every dimension must be known when the step is traced; use "
            "dataset.batch(size, drop_remainder=True), padded_batch with padded_shapes "
            "instead of ragged tensors, or dense instead of sparse ones"
        )


_CHUNK_BITS = 16
_INT64_BITS = 64


def sum_in_parts(
    tensors: Sequence[tf.Tensor],
    reduce: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Sums 64-bit integers over replicas by sums of int32."""
    # Each value is cut into four parts of 16 bits; their sums over up to 32,768
    # replicas fit into int32, and shifting them back adds up to the sum modulo 2^64.
    wide = [tf.bitcast(tensor, tf.int64) for tensor in tensors]
    totals = [tf.zeros_like(tensor) for tensor in wide]
    mask = tf.constant((1 << _CHUNK_BITS) - 1, tf.int64)
    for start in range(0, _INT64_BITS, _CHUNK_BITS):
        shift = tf.constant(start, tf.int64)
        parts = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(t, shift), mask) for t in wide
        ]
        sums = reduce([tf.cast(part, tf.int32) for part in parts])
        shifted = (tf.bitwise.left_shift(tf.cast(s, tf.int64), shift) for s in sums)
        totals = list(map(tf.add, totals, shifted))
    return [tf.bitcast(total, tensors[0].dtype) for total in totals]
