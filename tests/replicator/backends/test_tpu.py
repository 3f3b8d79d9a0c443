"""TPUs, as far as a machine without one can tell."""

import functools
import os
import socket
import time

import case_cluster
import fork_server
import graphs
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check_messages

import replicator
from tests.replicator.conftest import make

CHILD_TIMEOUT_SEC = 120.0
VARIABLES = ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "COLAB_TPU_ADDR")


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_without_a_tpu_the_message_says_where_it_was_looked_for():
    with pytest.raises(
        replicator.DeviceError,
        match=r"no TPU was found: tpu=None, none of TPU_NAME, .* is set, and "
        r"TensorFlow lists no TPU device; pass tpu='<name>'",
    ):
        replicator.create("tpu", num_replicas=8)


@pytest.fixture
def address():
    """Of a process that accepts connections."""
    with socket.create_server(("localhost", 0)) as listening:
        yield f"localhost:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TPU_NAME", "my-tpu", "my-tpu"),
        ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "grpc://{},grpc://b:1", "grpc://{}"),
        ("COLAB_TPU_ADDR", "{}", "grpc://{}"),
    ],
)
def test_the_environment_names_the_tpu(monkeypatch, address, variable, value, expected):
    monkeypatch.setenv(variable, value.format(address))
    found = []

    def resolve(tpu):
        found.append(tpu)
        raise ValueError("no such TPU")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolve)
    with pytest.raises(
        replicator.DeviceError, match=r"^TPU '.*' could not be initialised: no such TPU"
    ):
        replicator.create("tpu")

    assert [expected.format(address)] == found


def test_an_address_that_does_not_answer_is_named_within_the_wait(monkeypatch):
    """A minute, which passes in no time."""
    slept, now = [], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(slept))
    monkeypatch.setattr(time, "sleep", slept.append)
    with socket.create_server(("localhost", 0)) as closed:
        port = closed.getsockname()[1]

    with pytest.raises(
        replicator.UnreachableError, match=rf"within 60 s: tpu 0 at localhost:{port}"
    ):
        replicator.create("tpu", tpu=f"grpc://localhost:{port}")


_NO_TPU_BEHIND = """
import socket
import tensorflow as tf
import replicator
with socket.create_server(("localhost", 0)) as listening:
    address = f"localhost:{listening.getsockname()[1]}"
server = tf.distribute.Server({"worker": [address]}, protocol="grpc")
try:
    replicator.create("tpu", tpu=f"grpc://{address}")
except replicator.DeviceError as error:
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


def stand_in(mesh_shape=(2, 2, 1, 2), **options):
    """A replicator on a TPU, and the options of its strategy."""
    made = {}

    def make_strategy(**given):
        made.update(given)
        return make("tf_mirrored", 2).strategy

    with graphs.tpu(make_strategy, mesh_shape=mesh_shape):
        return replicator.create("tpu", tpu="v3-8", **options), made


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
    _, made = stand_in(
        mesh_shape=mesh_shape,
        num_replicas=1,
        logical_devices_per_replica=num_logical_devices,
    )

    asked = {"computation_shape": expected, "num_replicas": 1}
    assert {"experimental_device_assignment": asked} == made


def test_cores_that_do_not_fit_are_refused():
    refused = {
        r"5 replicas of 2 TPU cores need 10 cores, but TPU 'v3-8' has 8": (
            {"num_replicas": 5, "logical_devices_per_replica": 2}
        ),
        r"replica=3 is not a block of a 2 x 2 x 1 x 2 mesh": (
            {"logical_devices_per_replica": 3}
        ),
        **{
            rf"logical_devices_per_replica {count} must": (
                {"logical_devices_per_replica": count}
            )
            for count in (0, True, 1.5)
        },
    }
    check_messages(
        {
            f"^DeviceError: .*{said}": functools.partial(stand_in, **options)
            for said, options in refused.items()
        }
    )


def test_batches_of_unknown_shape_are_refused():
    data = tf.data.Dataset.range(3)
    ragged = data.map(tf.range).ragged_batch(2, drop_remainder=True)
    known = data.batch(2, drop_remainder=True)
    repl, _ = stand_in()

    for unknown in (data.batch(2), ragged):
        with pytest.raises(
            replicator.StaticShapeError,
            match=r"component 0 of a batch is .*drop_remaind",
        ):
            repl.make_input_iterator(lambda _, unknown=unknown: unknown)
    assert repl.make_input_iterator(lambda _: known.map(lambda x: {"x": x}))


@pytest.mark.parametrize("dtype", [tf.int64, tf.uint64])
def test_wide_integers_are_summed_in_parts_exactly(monkeypatch, dtype):
    """By sums of int32, which TPUs have; the stand-in sums int64."""
    limits = np.array([0, 1, -1, 2**62, -(2**63), 2**63 - 1, 123456789012345])
    values = [limits.astype(np.int64), limits[::-1].astype(np.int64)]
    tensors = [tf.bitcast(tf.constant(v), dtype) for v in values]
    of_tensorflow, sent = tf.distribute.ReplicaContext.all_reduce, set()

    def all_reduce(context, op, parts):
        sent.update(part.dtype for part in parts)
        wide = [tf.cast(part, tf.int64) for part in parts]
        return [tf.cast(x, tf.int32) for x in of_tensorflow(context, op, wide)]

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
    repl, _ = stand_in()
    monkeypatch.setattr(repl.replica_context_class, "wire_integer", tf.int32)
    totals = repl.run(replicator.all_sum, replicator.PerReplica(tensors))

    with np.errstate(over="ignore"):
        expected = values[0] + values[1]
    assert {tf.int32} == sent
    for total in totals:
        assert dtype == total.dtype
        np.testing.assert_array_equal(expected, tf.bitcast(total, tf.int64))


def test_sparse_gradients_of_unknown_length_are_refused():
    """A compiled step has one number of rows for all replicas and steps."""
    repl, _ = stand_in()

    def step(rows):
        some = tf.boolean_mask(rows, rows[:, 0] > 0.0)
        return replicator.all_sum(tf.IndexedSlices(some, tf.range(tf.shape(some)[0])))

    with pytest.raises(
        replicator.StaticShapeError, match=r"number of rows .* is not known.*pad ids"
    ):
        repl.run(step, replicator.PerReplica([tf.ones([3, 2])] * 2))
