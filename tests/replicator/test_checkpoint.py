"""Checkpoints continue training on any backend and number of replicas."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import resource
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode, errors

NUM_EXAMPLES = 96
GLOBAL_BATCH_SIZE = 8
_RNG = np.random.default_rng(0)
XS = _RNG.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
YS = _RNG.normal(size=(NUM_EXAMPLES, 1)).astype(np.float32)
CPUS = {"devices": [f"CPU:{i}" for i in range(4)]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """A replicator with all that a training loop holds."""

    repl: Any
    model: Any
    optimizer: Any
    inputs: Any
    step: Any

    def losses(self, num_steps):
        """Trains; returns each step's mean loss."""
        return [
            float(self.repl.reduce("mean", self.repl.run(self.step, self.inputs)))
            for _ in range(num_steps)
        ]

    def manager(self, directory, **options):
        """What saves all of it."""
        return self.repl.make_checkpoint_manager(
            directory,
            inputs=self.inputs,
            model=self.model,
            optimizer=self.optimizer,
            **options,
        )


def _input_fn(ctx):
    share = ctx.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)
    data = tf.data.Dataset.from_tensor_slices((XS, YS)).shuffle(NUM_EXAMPLES, seed=5)
    data = data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    return data.repeat().batch(share, drop_remainder=True)


def _training(
    name,
    num_replicas,
    *,
    is_local=False,
    mode=InputReplicationMode.PER_WORKER,
    **options,
):
    """Regression; ``is_local`` adds batch norm and dropout, which differ by replica."""
    keras.utils.set_random_seed(1)
    repl = replicator.create(name, num_replicas=num_replicas, **options)
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh")]
    with repl.context():
        if is_local:
            layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))
    inputs = repl.make_input_iterator(_input_fn, mode)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    return Training(
        repl=repl, model=model, optimizer=optimizer, inputs=inputs, step=step
    )


def _mirrored(num_replicas):
    devices = CPUS["devices"][:num_replicas]
    return {"devices": devices, "variable_placement": "mirrored"}


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_four_replicas_continue_bit_for_bit(tmp_path, placement):
    """Batch norm, dropout, Adam and a shuffled epoch: equal losses and weights."""
    options = _mirrored(4) if placement == "mirrored" else {}
    before = _training("in_graph", 4, is_local=True, **options)
    before.losses(5)
    before.manager(tmp_path).save()
    expected = before.losses(20)

    after = _training("in_graph", 4, is_local=True, **options)
    restored = after.manager(tmp_path).restore()

    assert expected == after.losses(20)
    for a, b in zip(before.model.variables, after.model.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert 5 == restored.step
    assert "each replica its own" in restored.local_state
    assert "exact, from the state of the iterators" == restored.input_position


@pytest.mark.parametrize("mode", list(InputReplicationMode))
def test_fewer_replicas_continue_the_same_curve(tmp_path, mode):
    """Four, then two, then one, then four replicas: the losses of never stopping."""
    whole = _training("in_graph", 4, mode=mode)
    expected = whole.losses(16)

    got = []
    for name, num_replicas in [
        ("in_graph", 4),
        ("in_graph", 2),
        ("single", 1),
        ("in_graph", 4),
    ]:
        part = _training(name, num_replicas, mode=mode)
        manager = part.manager(tmp_path)
        manager.restore()
        got += part.losses(4)
        manager.save()

    np.testing.assert_allclose(expected, got, rtol=1e-5)


def test_a_stock_strategy_takes_over_and_hands_back(tmp_path):
    """in_graph, tf_mirrored, in_graph: one curve, from one set of files."""
    expected = _training("single", 1).losses(12)

    got = []
    for name in ("in_graph", "tf_mirrored", "in_graph"):
        part = _training(name, 2, devices=CPUS["devices"][:2])
        manager = part.manager(tmp_path)
        manager.restore()
        got += part.losses(4)
        manager.save()
        assert name == manager.read_metadata().backend

    np.testing.assert_allclose(expected, got, rtol=1e-5)


def test_restoring_in_place_undoes_what_came_after(tmp_path):
    """The replicator that saved goes back, replica-local state and inputs included."""
    training = _training("in_graph", 4, is_local=True)
    manager = training.manager(tmp_path)
    training.losses(3)
    manager.save()
    expected = training.losses(6)

    manager.restore()

    assert expected == training.losses(6)


def _local(repl, **options):
    with repl.context():
        variable = tf.Variable(0.0, trainable=False, **options)
        generator = tf.random.Generator.from_seed(7)

    def step():
        replica_id = replicator.get_replica_context().replica_id
        variable.assign_add(tf.cast(replica_id, tf.float32) + 1)
        return variable.read_value(), generator.uniform([3])

    def read():
        return variable.read_value()

    return variable, generator, step, read


def _floats(per_replica):
    return [v.numpy().tolist() for v in per_replica]


def _manager(repl, directory, variable, generator):
    return repl.make_checkpoint_manager(
        directory, variable=variable, generator=generator
    )


def test_replica_local_state_comes_back_per_replica(in_graph, tmp_path):
    """Copies 1 and 2 return as 1 and 2, and so do the streams of random numbers."""
    variable, generator, step, _ = _local(in_graph)
    in_graph.run(step)
    _manager(in_graph, tmp_path, variable, generator).save(1)
    expected, stream = in_graph.run(step)

    again = type(in_graph)(
        num_replicas=2,
        devices=in_graph.devices,
        variable_placement=in_graph.variable_placement,
    )
    variable, generator, step, read = _local(again)
    _manager(again, tmp_path, variable, generator).restore()

    assert 1.5 == float(variable)
    values, draws = again.run(step)
    assert _floats(expected) == _floats(values) == [2.0, 4.0]
    assert _floats(stream) == _floats(draws)
    assert [2.0, 4.0] == _floats(again.run(read))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (tf.VariableAggregation.NONE, [2.5, 2.5]),  # (1 + 2 + 3 + 4) / 4
        (tf.VariableAggregation.MEAN, [2.5, 2.5]),
        (tf.VariableAggregation.SUM, [5.0, 5.0]),
        (tf.VariableAggregation.ONLY_FIRST_REPLICA, [1.0, 1.0]),
    ],
)
def test_another_number_of_replicas_starts_from_what_was_combined(
    tmp_path, aggregation, expected
):
    """Four copies become two by the rule that reads them outside steps."""
    four = replicator.create("in_graph", num_replicas=4)
    variable, generator, step, _ = _local(four, aggregation=aggregation)
    four.run(step)
    _manager(four, tmp_path, variable, generator).save(1)
    two = replicator.create("in_graph", num_replicas=2)
    variable, generator, step, read = _local(two, aggregation=aggregation)
    two.run(step)  # its copies exist already, and hold something else

    restored = _manager(two, tmp_path, variable, generator).restore()

    assert expected == _floats(two.run(read))
    assert "2 variables of 4 replicas, combined and given to 2" == restored.local_state


def test_random_streams_are_folded_anew_for_another_number_of_replicas(tmp_path):
    """Two of four replicas continue their own streams: the fold is by replica id."""
    four = replicator.create("in_graph", num_replicas=4)
    variable, generator, step, _ = _local(four)
    four.run(step)
    _manager(four, tmp_path, variable, generator).save(1)
    expected = _floats(four.run(step)[1])

    two = replicator.create("in_graph", num_replicas=2)
    variable, generator, step, _ = _local(two)
    _manager(two, tmp_path, variable, generator).restore()

    assert expected[:2] == _floats(two.run(step)[1])


def test_a_variable_set_after_the_restore_is_the_truth(in_graph, tmp_path):
    """The user's value reaches all copies, not those of the checkpoint."""
    variable, generator, step, _ = _local(in_graph)
    in_graph.run(step)
    _manager(in_graph, tmp_path, variable, generator).save(1)
    again = replicator.create("in_graph", num_replicas=2)
    variable, generator, step, read = _local(again)
    _manager(again, tmp_path, variable, generator).restore()

    variable.assign(10.0)

    assert [11.0, 12.0] == _floats(again.run(step)[0])
    assert [11.0, 12.0] == _floats(again.run(read))


def test_copies_of_a_stock_strategy_come_back_per_replica(tmp_path):
    """ON_READ variables of tf.distribute: 1 and 2, not their sum or mean twice."""

    def make():
        repl = replicator.create("tf_mirrored", num_replicas=2, **_mirrored_devices())
        with repl.context():
            variable = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )

        def step():
            replica_id = replicator.get_replica_context().replica_id
            variable.assign_add(tf.cast(replica_id, tf.float32) + 1)
            return variable.read_value()

        return repl, step, repl.make_checkpoint_manager(tmp_path, variable=variable)

    repl, step, manager = make()
    repl.run(step)
    manager.save(1)
    repl, step, manager = make()
    manager.restore()

    assert [2.0, 4.0] == _floats(repl.run(step))


def _mirrored_devices():
    return {"devices": CPUS["devices"][:2]}


def _reader(num_replicas, mode, make_dataset, *, global_batch_size=8):
    """A replicator that only reads, with one step variable to save."""
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    with repl.context():
        variable = tf.Variable(0, trainable=False)

    def input_fn(ctx):
        data = make_dataset().shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return data.batch(ctx.get_per_replica_batch_size(global_batch_size))

    inputs = repl.make_input_iterator(input_fn, mode)

    def read(num_steps):
        steps = [repl.run(tf.identity, inputs) for _ in range(num_steps)]
        return [int(x) for parts in steps for part in parts for x in part.numpy()]

    def manager(directory):
        return repl.make_checkpoint_manager(directory, inputs=inputs, step=variable)

    return read, manager, inputs


@pytest.mark.parametrize("mode", list(InputReplicationMode))
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_no_example_of_the_epoch_is_repeated_or_lost(tmp_path, mode, num_replicas):
    """Four replicas read two steps, others the rest: every example once."""

    def data():
        return tf.data.Dataset.range(40).shuffle(40, seed=3)

    read, manager, _ = _reader(4, mode, data)
    first = read(2)
    manager(tmp_path).save(2)
    read, manager, inputs = _reader(num_replicas, mode, data)

    manager(tmp_path).restore()

    assert list(range(40)) == sorted(first + read(3))
    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    assert 5 == inputs.num_steps


def test_a_position_that_was_reached_by_skipping_is_saved_exactly(tmp_path):
    """4 replicas, then 2, then 2 again: the iterators of the second are restored."""
    data = functools.partial(tf.data.Dataset.range, 48)
    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(4, mode, data)
    got = read(2)
    manager(tmp_path).save(2)
    read, manager, _ = _reader(2, mode, data)
    manager(tmp_path).restore()
    got += read(1)
    manager(tmp_path).save(3)
    read, manager, inputs = _reader(2, mode, data)

    restored = manager(tmp_path).restore()

    assert list(range(48)) == got + read(3)
    assert restored.input_position.startswith("exact")
    assert 6 == inputs.num_steps


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_later_epochs_keep_the_order_of_their_shuffles(tmp_path, num_replicas):
    """Saved in the second epoch: its rest and the third are as without stopping."""
    mode = InputReplicationMode.PER_WORKER

    def data():
        return tf.data.Dataset.range(24).shuffle(24, seed=3)

    def epoch(read, inputs):
        inputs.reinitialize()
        return read(3)

    read, _, inputs = _reader(4, mode, data)
    expected = [read(3), epoch(read, inputs), epoch(read, inputs)]
    read, manager, inputs = _reader(4, mode, data)
    read(3)
    inputs.reinitialize()
    begun = read(1)
    manager(tmp_path).save(4)
    read, manager, inputs = _reader(num_replicas, mode, data)
    manager(tmp_path).restore()
    rest, following = read(2), epoch(read, inputs)

    assert expected[1:] == [begun + rest, following]
    assert expected[0] != expected[1] != expected[2]


def test_data_whose_state_cannot_be_saved_is_read_again_and_says_so(tmp_path):
    """A Python generator has no state to save: its elements are skipped."""

    def make():
        return tf.data.Dataset.from_generator(
            lambda: iter(range(32)), output_signature=tf.TensorSpec([], tf.int64)
        )

    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(2, mode, make)
    read(2)
    manager(tmp_path).save(2)
    read, manager, _ = _reader(2, mode, make)

    restored = manager(tmp_path).restore()

    assert "skipping the 2 steps that were read (PyFunc is stateful." in (
        restored.input_position
    )
    assert list(range(16, 32)) == read(2)


def test_the_end_of_the_data_is_a_position_too(tmp_path):
    """Saved after the epoch, restored on another number of replicas: still over."""
    data = functools.partial(tf.data.Dataset.range, 16)
    read, manager, _ = _reader(4, InputReplicationMode.PER_WORKER, data)
    read(2)
    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    manager(tmp_path).save(2)
    read, manager, inputs = _reader(2, InputReplicationMode.PER_WORKER, data)
    manager(tmp_path).restore()

    with pytest.raises(tf.errors.OutOfRangeError):
        read(1)
    inputs.reinitialize()

    assert list(range(16)) == read(2)


def test_another_global_batch_continues_at_the_same_example(tmp_path):
    """Three steps of 8 are two of 12; they are no whole number of 16."""

    def make(num_replicas, global_batch_size):
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        inputs = repl.make_input_iterator(
            lambda ctx: tf.data.Dataset.range(96).batch(
                ctx.get_per_replica_batch_size(global_batch_size), drop_remainder=True
            )
        )
        manager = repl.make_checkpoint_manager(
            tmp_path, inputs=inputs, step=tf.Variable(0)
        )
        return repl, inputs, manager

    repl, inputs, manager = make(4, 8)
    for _ in range(3):
        repl.run(tf.identity, inputs)
    manager.save(3)
    repl, inputs, manager = make(2, 12)
    manager.restore()

    assert list(range(24, 30)) == repl.run(tf.identity, inputs)[0].numpy().tolist()
    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"read 3 steps of 8 examples, which is no whole number of steps of 16",
    ):
        make(2, 16)[2].restore()


def test_iterators_of_another_dataset_are_refused(tmp_path):
    """The same topology, but the input function now shuffles."""
    data = functools.partial(tf.data.Dataset.range, 32)
    mode = InputReplicationMode.PER_WORKER
    read, manager, _ = _reader(2, mode, data)
    read(1)
    manager(tmp_path).save(1)

    with pytest.raises(
        errors.CheckpointError,
        match=r"state of the input iterators does not fit.*builds another dataset",
    ):
        _reader(2, mode, lambda: data().shuffle(4))[1](tmp_path).restore()


def _weights_only(directory, units=3, **options):
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    return model, repl.make_checkpoint_manager(directory, model=model, **options)


def test_the_checkpoint_of_another_model_is_refused_with_the_differences(tmp_path):
    """Shapes, missing and superfluous variables are named; nothing is changed."""
    _, manager = _weights_only(tmp_path)
    manager.save(7)
    model, wider = _weights_only(tmp_path, units=5)
    before = [w.copy() for w in model.get_weights()]

    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"ckpt-1' \(step 7, in_graph, 2 replicas\) is of another model: "
        r"'model/.*kernel' is float32\[2, 3\] in the checkpoint but float32\[2, 5\] "
        r"here; 'model/.*/bias' is float32\[3\] in the checkpoint but float32\[5\]",
    ):
        wider.restore()
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)

    repl = replicator.create("single")
    other = repl.make_checkpoint_manager(tmp_path, model=tf.Variable([1.0]))
    with pytest.raises(
        errors.CheckpointMismatchError,
        match=r"'model' \(float32\[1\]\) is not in the checkpoint; 'model/.*not here",
    ):
        other.restore()


def test_metadata_says_who_saved_what(tmp_path):
    """Backend, replicas, step, versions and a digest, without restoring."""
    _, manager = _weights_only(tmp_path)
    manager.save(7)
    first = manager.read_metadata()
    _weights_only(tmp_path, units=5)[1].save(8)
    second = manager.read_metadata()
    manager.save(9)

    assert ("in_graph", 2, 1, 7) == (
        first.backend,
        first.num_replicas,
        first.num_workers,
        first.step,
    )
    assert tf.__version__ == first.tensorflow_version
    assert first.library_version
    assert first.digest == manager.read_metadata().digest != second.digest


def test_there_is_nothing_to_restore_before_the_first_save(tmp_path):
    """A fresh directory is a fresh start, but a path that is missing is not."""
    _, manager = _weights_only(tmp_path / "new")

    assert manager.restore() is None
    assert manager.latest_checkpoint is None
    with pytest.raises(errors.CheckpointError, match=r"'nowhere' could not be read"):
        manager.restore("nowhere")
    with pytest.raises(errors.CheckpointError, match=r"new' holds no checkpoint"):
        manager.read_metadata()


def test_lost_files_are_an_error_and_no_fresh_start(tmp_path):
    """A latest checkpoint whose data is gone must not restart training in silence."""
    _, manager = _weights_only(tmp_path)
    path = manager.save(1)
    pathlib.Path(f"{path}.index").unlink()

    with pytest.raises(errors.CheckpointError, match=r"ckpt-1' could not be read"):
        manager.restore()


def test_damaged_files_are_an_error(tmp_path):
    """Bytes cut off the data are noticed, in one line."""
    _, manager = _weights_only(tmp_path)
    path = manager.save(1)
    (data,) = tmp_path.glob("ckpt-1.data-*")
    data.write_bytes(data.read_bytes()[:-40])

    with pytest.raises(errors.CheckpointError, match=r"ckpt-1' could not be read.*dam"):
        manager.restore(path)


def test_a_plain_checkpoint_is_told_apart_and_ours_loads_plainly(tmp_path):
    """Weights travel both ways; only training state needs the manager."""
    model, manager = _weights_only(tmp_path / "ours")
    ours = manager.save(1)
    other, _ = _weights_only(tmp_path)
    tf.train.Checkpoint(model=other).read(ours).assert_existing_objects_matched()
    plain = tf.train.Checkpoint(model=model).write(str(tmp_path / "plain"))

    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    with pytest.raises(
        errors.CheckpointError, match=r"plain' was not written by make_checkpoint_man"
    ):
        manager.restore(plain)


def test_inputs_need_a_checkpoint_with_a_position(tmp_path):
    """Data starting anew in silence would repeat examples."""
    _weights_only(tmp_path)[1].save(1)
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(4))
    with repl.context():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    manager = repl.make_checkpoint_manager(tmp_path, inputs=inputs, model=model)

    with pytest.raises(
        errors.CheckpointMismatchError, match=r"has no input position.*inputs=None"
    ):
        manager.restore()


def test_old_checkpoints_are_deleted_and_numbers_never_used_twice(tmp_path):
    """max_to_keep=2: the fourth save leaves 3 and 4, whatever was restored between."""
    _, manager = _weights_only(tmp_path, max_to_keep=2)
    for step in range(3):
        manager.save(step)
    manager.restore(manager.checkpoints[0])
    manager.save(1)

    names = [pathlib.Path(path).name for path in manager.checkpoints]
    assert ["ckpt-3", "ckpt-4"] == names
    assert {"ckpt-3.index", "ckpt-4.index"} == {p.name for p in tmp_path.glob("*.ind*")}


def test_a_full_disk_is_one_clear_line_and_the_last_good_one_stays(tmp_path):
    """A limit on file size stands for the disk: 4 MB of weights do not fit 1 MB."""
    repl = replicator.create("single")
    with repl.context():
        weight = tf.Variable(tf.ones([1_000_000]))
    manager = repl.make_checkpoint_manager(tmp_path, weight=weight)
    good = manager.save(1)
    weight.assign(tf.zeros_like(weight))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(
            errors.CheckpointError,
            match=r"ckpt-2' could not be written: .*; the last good one is '.*ckpt-1'; "
            r"free space",
        ):
            manager.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert good == manager.latest_checkpoint
    assert [] == list(tmp_path.glob("ckpt-2.*"))
    manager.restore()
    assert 1.0 == float(weight[0])
    weight.assign(2 * weight)
    assert str(tmp_path / "ckpt-2") == manager.save(2)


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path):
    """A file stands where the directory should be."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    _, manager = _weights_only(tmp_path / "file")

    with pytest.raises(
        errors.CheckpointError,
        match=r"file/ckpt-1' could not be written: .*there is none yet; free space or",
    ):
        manager.save(1)


def test_what_cannot_be_saved_is_refused_at_once(tmp_path):
    """Not after the first hour of training."""
    repl = replicator.create("single")

    with pytest.raises(TypeError, match=r"rate=0.1 cannot be saved: it is a 'float'"):
        repl.make_checkpoint_manager(tmp_path, rate=0.1)
    with pytest.raises(ValueError, match=r"got nothing to save; pass for example"):
        repl.make_checkpoint_manager(tmp_path)
    with pytest.raises(ValueError, match=r"'save_counter' is a name that checkpoints"):
        repl.make_checkpoint_manager(tmp_path, save_counter=tf.Variable(0))
    with pytest.raises(ValueError, match=r"max_to_keep 0 must be an integer of at l"):
        repl.make_checkpoint_manager(tmp_path, max_to_keep=0, x=tf.Variable(0))


def test_steps_are_counted_by_the_optimizer_or_by_the_caller(tmp_path):
    """Two optimizers count differently, none does not count at all."""
    repl = replicator.create("single")
    one = keras.optimizers.SGD(0.1)
    manager = repl.make_checkpoint_manager(tmp_path, optimizer=one)
    one.iterations.assign(12)
    manager.save()
    assert 12 == manager.read_metadata().step

    both = repl.make_checkpoint_manager(
        tmp_path, generator=one, discriminator=repl.wrap_optimizer(one)
    )
    with pytest.raises(ValueError, match=r"there are 2 optimizers among 'generator'"):
        both.save()
    with pytest.raises(ValueError, match=r"step -1 must be an integer of at least 0"):
        both.save(-1)


def test_a_module_and_a_plain_optimizer_are_saved_too(tmp_path):
    """tf.Module, an optimizer that nobody wrapped, and plain variables."""

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.layers = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]

    def make():
        repl = replicator.create("in_graph", num_replicas=2)
        with repl.context():
            net, optimizer = Net(), keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(net.layers)
        return net, repl.make_checkpoint_manager(tmp_path, net=net, optimizer=optimizer)

    net, manager = make()
    net.layers[1].assign([30.0])
    manager.save(1)
    net, manager = make()

    assert 6 == manager.restore().num_variables  # 2, their momenta, step and rate
    assert [30.0] == net.layers[1].numpy().tolist()
