"""Stand-ins for hardware that test machines do not have."""

import contextlib
from unittest import mock

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.backends.tpu import TpuReplicaContext
from replicator.cluster import tpu_system


class _TpuOnCpus:
    """An initialised TPU whose cores are virtual CPU devices."""

    name = "stand-in"

    def make_strategy(self, num_replicas, num_logical_devices):
        """MirroredStrategy has the interface of TPUStrategy that steps see."""
        assert num_logical_devices == 1
        # On CPUs, TensorFlow keeps int32 apart and MirroredStrategy sums int64 only.
        TpuReplicaContext.wire_integer = tf.int64
        names = [f"/device:CPU:{index}" for index in range(num_replicas)]
        return _tf_compat.mirrored_strategy(names)


@contextlib.contextmanager
def tpu():
    """A TPU is found, and it is the CPU."""
    with mock.patch.object(tpu_system, "connect", return_value=_TpuOnCpus()):
        yield
