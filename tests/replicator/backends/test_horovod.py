"""What Horovod's backend says where it cannot run; what it does is in the conformance.

``tests/conformance`` runs it over a stand-in for Horovod in two processes.
"""

from __future__ import annotations

import sys
import types

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.backends import horovod
from replicator.errors import (
    BackendNotInstalledError,
    DeviceError,
    OptimizerOptionError,
)


@pytest.fixture
def alone(monkeypatch):
    """Horovod with one process: what it sends, it gets back."""
    module = types.ModuleType("horovod.tensorflow")
    module.Sum, module.Average, module.Min, module.Max = "Sum", "Average", "Min", "Max"
    module.sent = []

    def send(tensor, *_args, name, **options):
        module.sent.append((name, tensor.dtype.name, options.get("op")))
        return tensor

    module.init = lambda: None
    module.size = lambda: 1
    module.rank = module.local_rank = lambda: 0
    module.rank_op = lambda: tf.constant(0)
    module.allreduce = module.allgather = module.broadcast = send
    module.allgather_object = lambda value, *, name: [value]
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", module)
    return module


def test_without_horovod_the_message_says_how_to_install_it(monkeypatch):
    """The reason why it cannot be imported is in it."""
    monkeypatch.setitem(sys.modules, "horovod", None)

    with pytest.raises(BackendNotInstalledError, match=r"TensorFlow 2.*pip install"):
        replicator.create("horovod", num_replicas=2)


def test_horovod_is_imported_by_its_constructor_only():
    """Naming the class costs nothing where Horovod is not installed."""
    assert issubclass(replicator.HorovodReplicator, replicator.Replicator)
    assert "horovod" not in sys.modules


def test_another_number_of_replicas_than_processes(alone):
    """Horovod's launcher decides; the message has both numbers."""
    with pytest.raises(DeviceError, match=r"num_replicas=2 .*1 processes.*-np 2"):
        replicator.create("horovod", num_replicas=2)


def test_collectives_have_names_that_follow_the_trace(alone):
    """Every process gives the n-th collective of a step the same one, and one type."""
    repl = replicator.create("horovod")
    values = replicator.PerReplica([tf.constant([1.0, 2.0], tf.bfloat16)])

    def step(x):
        return replicator.all_max(x), replicator.broadcast(tf.cast(x, tf.int8))

    repl.run(step, values)

    assert [
        ("replicator_1_max", "float32", "Max"),
        ("replicator_2_broadcast", "int32", None),
    ] == alone.sent


def test_gradients_are_compressed_to_float16_only(alone):
    """Both ways to ask for bfloat16 name the type that there is."""
    repl = replicator.create("horovod")

    with pytest.raises(OptimizerOptionError, match=r"compression='bfloat16'.*float16"):
        repl.wrap_optimizer(keras.optimizers.SGD(), compression="bfloat16")
    with pytest.raises(OptimizerOptionError, match=r"use compression='float16'"):
        repl.run(lambda: replicator.all_reduce(1.0, "sum", compression="bfloat16"))
    repl.run(lambda: replicator.all_reduce(1.0, "sum", compression="float16"))
    assert ("replicator_1_sum", "float16", "Sum") == alone.sent[-1]


def test_a_sharded_update_is_refused(alone):
    """The message says why."""
    with pytest.raises(
        OptimizerOptionError, match=r"sharded_update=True .* every proc"
    ):
        replicator.create("horovod").wrap_optimizer(
            keras.optimizers.SGD(), sharded_update=True
        )


@pytest.mark.parametrize(
    ("local_rank", "error", "pattern"),
    [
        (1, None, None),
        (2, None, r"local rank 2 has no GPU: this machine has 2"),
        (0, RuntimeError("started"), r"already initialized all GPUs"),
    ],
)
def test_each_process_takes_the_gpu_of_its_local_rank(
    monkeypatch, local_rank, error, pattern
):
    """No GPU is here: what is asked of TensorFlow is looked at instead."""
    gpus = ["first", "second"]
    taken = []

    def take(device, _kind):
        if error is not None:
            raise error
        taken.append(device)

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _kind: gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", take)
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda device, enable: None
    )

    if pattern is None:
        horovod._take_own_gpu(local_rank)
        assert ["second"] == taken
    else:
        with pytest.raises(DeviceError, match=pattern):
            horovod._take_own_gpu(local_rank)


def test_the_plan_is_horovods(alone):
    """explain() says where to find it."""
    assert "HOROVOD_TIMELINE" in replicator.create("horovod").explain()


def test_processes_that_are_not_at_the_same_place(alone):
    """Each said what it is about; the message has both."""
    repl = replicator.create("horovod")
    other = '{"what": "assert_in_sync()", "text": ""}'
    alone.allgather_object = lambda value, *, name: [value, other]

    with pytest.raises(
        replicator.ReplicatorError,
        match=r"rank 0 is at an exchange.*rank 1 is at assert",
    ):
        repl.gather_bytes(b"")
