"""TPUs, as far as a machine without one can tell."""

import os
import types

import case_cluster
import fork_server
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.backends import tpu
from replicator.cluster import local_cluster
from replicator.collectives.kinds import AllConcat

CHILD_TIMEOUT_SEC = 120.0


def test_without_a_tpu_the_message_says_where_it_was_looked_for(monkeypatch):
    for variable in tpu.ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)

    with pytest.raises(
        replicator.DeviceError,
        match=r"no TPU was found: tpu=None, none of TPU_NAME, .* is set, and "
        r"TensorFlow lists no TPU device; pass tpu='<name>'",
    ):
        replicator.create("tpu", num_replicas=8)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TPU_NAME", "my-tpu", "my-tpu"),
        ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://a:1,grpc://b:1", "grpc://a:1"),
        ("COLAB_TPU_ADDR", "10.0.0.2:8470", "grpc://10.0.0.2:8470"),
    ],
)
def test_the_environment_names_the_tpu(variable, value, expected):
    assert expected == tpu._name_from_environment({variable: value})


def test_an_address_that_does_not_answer_is_named_within_the_wait(monkeypatch):
    monkeypatch.setattr(tpu, "CONNECT_TIMEOUT_SEC", 0.3)
    [port] = local_cluster.free_ports(1)

    with pytest.raises(
        replicator.UnreachableError, match=rf"within 0.3 s: tpu 0 at localhost:{port}"
    ):
        replicator.create("tpu", tpu=f"grpc://localhost:{port}")


_NO_TPU_BEHIND = """
import tensorflow as tf
from replicator import errors
from replicator.backends import tpu
from replicator.cluster import local_cluster
[port] = local_cluster.free_ports(1)
address = f"localhost:{port}"
server = tf.distribute.Server({"worker": [address]}, protocol="grpc")
try:
    tpu.connect(f"grpc://{address}")
except errors.DeviceError as error:
    print("SAID", str(error).replace(address, "there"))
"""


@pytest.mark.processes
def test_a_server_without_a_tpu_is_refused_with_what_tensorflow_said(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_NO_TPU_BEHIND, encoding="utf-8")
    _, text = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env={**os.environ, **case_cluster.ENV},
        log=tmp_path / "log",
        timeout_sec=CHILD_TIMEOUT_SEC,
    )
    said = text.partition("SAID ")[2]

    assert said.startswith("TPU 'grpc://there' could not be initialised: "), text
    assert "check that it runs" in said


@pytest.mark.parametrize(
    ("mesh_shape", "num_logical_devices", "expected"),
    [
        ((2, 2, 1, 2), 1, [1, 1, 1, 1]),
        ((2, 2, 1, 2), 2, [1, 1, 1, 2]),
        ((2, 2, 1, 2), 4, [2, 1, 1, 2]),
        ((2, 2, 1, 2), 8, [2, 2, 1, 2]),
        ((4, 4, 2, 1), 16, [4, 4, 1, 1]),
    ],
)
def test_a_replica_takes_neighbouring_cores(mesh_shape, num_logical_devices, expected):
    """The cores of a chip first, then along x, y and z."""
    assert expected == tpu.computation_shape(mesh_shape, num_logical_devices)


@pytest.fixture
def system():
    topology = types.SimpleNamespace(
        num_tasks=1, num_tpus_per_task=8, mesh_shape=np.array([2, 2, 1, 2])
    )
    return tpu.TpuSystem("v3-8", "resolver", topology)


def test_cores_that_do_not_fit_are_refused(system):
    calls = {
        r"5 replicas of 2 TPU cores need 10 cores, but TPU 'v3-8' has 8": (
            lambda: system.make_strategy(5, 2)
        ),
        r"replica=3 is not a block of a 2 x 2 x 1 x 2 mesh": (
            lambda: system.make_strategy(None, 3)
        ),
        **{
            rf"logical_devices_per_replica {count} must": (
                lambda count=count: replicator.TpuReplicator(
                    logical_devices_per_replica=count
                )
            )
            for count in (0, True, 1.5)
        },
    }
    for message, call in calls.items():
        with pytest.raises(replicator.DeviceError, match=message):
            call()


def test_batches_of_unknown_shape_are_refused():
    data = tf.data.Dataset.range(3)
    ragged = data.map(tf.range).ragged_batch(2, drop_remainder=True)
    known = data.batch(2, drop_remainder=True)

    for unknown in (data.batch(2), ragged):
        with pytest.raises(
            replicator.StaticShapeError,
            match=r"component 0 of a batch is .*drop_remaind",
        ):
            tpu.check_static(unknown.element_spec)
    assert tpu.check_static({"x": known.element_spec}) is None


@pytest.mark.parametrize("dtype", [tf.int64, tf.uint64])
def test_wide_integers_are_summed_in_parts_exactly(dtype):
    limits = np.array([0, 1, -1, 2**62, -(2**63), 2**63 - 1, 123456789012345])
    values = [limits.astype(np.int64), limits[::-1].astype(np.int64)]
    tensors = [tf.bitcast(tf.constant(v), dtype) for v in values]

    def reduce(parts):
        assert {tf.int32} == {part.dtype for part in parts}
        return [tf.add_n(list(parts))] * len(parts)

    total, _ = tpu.sum_in_parts(tensors, reduce)

    with np.errstate(over="ignore"):
        expected = values[0] + values[1]
    assert dtype == total.dtype
    np.testing.assert_array_equal(expected, tf.bitcast(total, tf.int64))


def test_sparse_gradients_of_unknown_length_are_refused():
    """A compiled step has one number of rows for all replicas and steps."""
    context = tpu.TpuReplicaContext(2)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])], autograph=False)
    def step(rows):
        return context.communicate(AllConcat(), [rows])

    with pytest.raises(
        replicator.StaticShapeError, match=r"number of rows .* is not known.*pad ids"
    ):
        step.get_concrete_function()
